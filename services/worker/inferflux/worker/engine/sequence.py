"""One request on board of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferflux.common.kv_cells import cells_of
from inferflux.v1 import worker_pb2

from .sampling import Sampler
from .text import TextAssembler

TokenArray = NDArray[np.int32]


class PieceSource(Protocol):
    """What of a vocabulary a sequence needs."""

    @property
    def eog(self) -> frozenset[int]: ...

    def piece(self, token: int) -> bytes: ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its slot, its tokens and what it needs to go on.

    `pending` are tokens whose KV cells are still to be computed: the prompt (and on a retry what was
    generated before) while it prefills, the last sampled token while it decodes.
    """

    key: str
    request_id: str
    epoch: int
    slot: int
    priority: int
    arrival: int
    pending: TokenArray
    prompt_tokens: int
    max_tokens: int
    end_tokens: frozenset[int]
    sampler: Sampler
    text: TextAssembler
    deadline_unix_s: float
    queue_ms: float
    started_s: float
    generated: int = 0
    position: int = 0
    first_token_s: float = 0.0
    is_announced: bool = False

    @property
    def is_prefilling(self) -> bool:
        return self.first_token_s == 0.0

    @property
    def cells(self) -> int:
        """KV cells this sequence may come to hold: all but the last token, which needs none."""
        return cells_of(self.prompt_tokens, self.max_tokens)


def sequence_of(
    item: worker_pb2.BatchItem, *, arrival: int, now_s: float, unix_s: float, pieces: PieceSource
) -> Sequence:
    """A sequence ready to prefill, its sampler and text brought up to the tokens already emitted.

    Args:
        arrival: order among sequences of the same priority.
        now_s: monotonic clock. unix_s: wall clock.
        pieces: the vocabulary, for replaying text and for its end-of-generation tokens.
    """
    request = item.request
    params = request.params
    generated = list(request.generated_token_ids)
    history = list(request.prompt_token_ids) + generated
    text = TextAssembler(params.stop)
    for token in generated:
        text.push(pieces.piece(token))
    ends = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        ends |= pieces.eog
    return Sequence(
        key=f"{request.tenant}.{request.request_id}",
        request_id=request.request_id,
        epoch=request.epoch,
        slot=item.slot,
        priority=request.priority,
        arrival=arrival,
        pending=np.array(history, np.int32),
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=params.max_tokens,
        end_tokens=ends,
        sampler=Sampler(params.sampling, history),
        text=text,
        deadline_unix_s=request.deadline_unix_ms / 1000 if request.deadline_unix_ms else float("inf"),
        queue_ms=max(unix_s * 1000 - request.enqueued_unix_ms, 0.0),
        started_s=now_s,
        generated=len(generated),
    )
