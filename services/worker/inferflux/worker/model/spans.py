"""The worker's part of a request's trace: a span for the time that it is resident."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.tracing import OFF, Attributes, Span, Tracer, names
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2

from .residents import Resident

# Outcomes that are no failure.
_GOOD_OUTCOMES = frozenset({"stop", "length", "cancelled", "schema_mismatch"})


@dataclass(slots=True)
class _Run:
    """A resident request that came with a trace."""

    span: Span
    # Replayed tokens that came with it.
    generated_before: int
    has_token: bool = False


class WorkerSpans:
    """Spans of resident requests, by key and epoch."""

    def __init__(self, tracer: Tracer, worker_id: str) -> None:
        self._tracer = tracer
        self._worker_id = worker_id
        self._runs: dict[tuple[str, int], _Run] = {}

    def take_up(self, resident: Resident, item: worker_pb2.BatchItem) -> None:
        """A request becomes resident."""
        request = item.request
        if not self._tracer.is_on or not request.traceparent:
            return
        attributes: Attributes = {
            names.REQUEST_MODEL: request.model,
            names.REQUEST_ID: request.request_id,
            names.WORKER_ID: self._worker_id,
            names.EPOCH: request.epoch,
            names.SLOT: item.slot,
            names.INPUT_TOKENS: resident.prompt_tokens,
        }
        span = self._tracer.start(names.RUN, parent=request.traceparent, attributes=attributes)
        self._runs[resident.key, resident.epoch] = _Run(span, resident.generated_tokens)

    def traceparent_of(self, key: str, epoch: int) -> str:
        """Trace context of a resident request; empty: it has none."""
        run = self._runs.get((key, epoch))
        return run.span.traceparent if run is not None else ""

    def begin(self, name: str, parent: str, attributes: Attributes) -> Span:
        """A span of a request's trace; without one nothing comes of it."""
        tracer = self._tracer if parent else OFF
        return tracer.start(name, parent=parent, attributes={**attributes, names.WORKER_ID: self._worker_id})

    def resumed(self, resident: Resident, slot: int) -> None:
        """It runs again."""
        run = self._runs.get((resident.key, resident.epoch))
        if run is not None:
            run.span.event("resumed", {names.SLOT: slot})

    def on_step(self, step: engine_pb2.StepReport) -> None:
        """Events of a step: prefill chunks, first tokens, descheduled and finished requests."""
        if not self._runs:
            return
        for prefilled in step.prefilled:
            run = self._runs.get((prefilled.key, prefilled.epoch))
            if run is not None:
                run.span.event("prefill_chunk", {names.COMPUTED_TOKENS: prefilled.computed_tokens})
        for emission in step.emissions:
            run = self._runs.get((emission.key, emission.epoch))
            if run is not None and not run.has_token and emission.generated_tokens > run.generated_before:
                run.has_token = True
                run.span.event("first_token")
        for moved in step.residences:
            run = self._runs.get((moved.key, moved.epoch))
            if run is not None and moved.residence != scheduler_pb2.RESIDENCE_RUNNING:
                run.span.event("yielded", _why(moved))
        for ended in step.finished:
            self._finish(ended)

    def left(self, resident: Resident, outcome: str) -> None:
        """It is resident no more, and no engine died."""
        run = self._runs.pop((resident.key, resident.epoch), None)
        if run is not None:
            run.span.set({names.OUTCOME: outcome, names.OUTPUT_TOKENS: resident.generated_tokens})
            run.span.end()

    def lost(self, residents: list[Resident], why: str) -> None:
        """The engine died with these requests."""
        for resident in residents:
            if (run := self._runs.get((resident.key, resident.epoch))) is not None:
                run.span.fail("engine_died", why)
            self.left(resident, "engine_died")

    def _finish(self, ended: engine_pb2.EngineFinished) -> None:
        run = self._runs.pop((ended.key, ended.epoch), None)
        if run is None:
            return
        run.span.set({names.OUTCOME: ended.outcome, names.OUTPUT_TOKENS: ended.completion_tokens})
        if ended.outcome not in _GOOD_OUTCOMES:
            run.span.fail(ended.outcome)
        run.span.end()


def _why(moved: engine_pb2.EngineResidence) -> dict[str, str]:
    return {
        names.REASON: _word(scheduler_pb2.YieldReason.Name(moved.reason)),
        names.RESIDENCE: _word(scheduler_pb2.Residence.Name(moved.residence)),
    }


def _word(enum_name: str) -> str:
    """YIELD_REASON_TIMESLICE -> timeslice"""
    return enum_name.rsplit("_", 1)[-1].lower()
