"""Requests that are to have the same answer again, and the reason why one cannot."""

from __future__ import annotations

from typing import Protocol

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2
from inferflux.worker.engine.plan.sequence import Sequence

from .parts import Part


class DeterministicBackend(Protocol):
    """Interface of a backend that may compute the same answer again."""

    def open_deterministic(self) -> str: ...

    def flash_attention(self) -> dict[str, bool]: ...


class Determinism(Part):
    """Requests that are to have the same answer again.

    Args:
        is_default: whether requests that leave it open are.
    """

    def __init__(self, backend: DeterministicBackend, *, is_default: bool) -> None:
        self._backend = backend
        self._is_default = is_default
        # Since the last report.
        self._has_begun = False

    def is_wanted(self, params: generation_pb2.GenerationParams) -> bool:
        """True if a request asks for it, or leaves it open where it is the default."""
        return params.deterministic if params.HasField("deterministic") else self._is_default

    def begin(self, sequence: Sequence, _request: scheduler_pb2.InferenceRequest) -> None:
        if not sequence.is_deterministic:
            return
        why = "a prompt has images or sounds" if sequence.images else self._backend.open_deterministic()
        if why:
            message = (
                f"deterministic, as the request, its key or its model has it, cannot be: {why}. "
                "A request with deterministic: false is answered"
            )
            raise InvalidArgument(message, field="params.deterministic", reason="NOT_DETERMINISTIC")
        self._has_begun = True

    def stats(self, step: engine_pb2.StepReport) -> None:
        if self._has_begun:  # its context may be new
            step.flash_attention_by_context.update(self._backend.flash_attention())
            self._has_begun = False
