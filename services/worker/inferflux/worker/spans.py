"""What the worker adds to its requests' traces: a span from taking one up to being rid of it."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.tracing import Attributes, Span, Tracer, names
from inferflux.v1 import engine_pb2, scheduler_pb2

from .running import Running

# How a request may end well.
_GOOD_ENDS = frozenset({"stop", "length", "cancelled"})


@dataclass(slots=True)
class _Run:
    """A request on board that came with a trace."""

    span: Span
    # Tokens that came with it.
    generated_before: int
    has_token: bool = False


class WorkerSpans:
    """Spans of what is on board, by key and epoch."""

    def __init__(self, tracer: Tracer, worker_id: str) -> None:
        self._tracer = tracer
        self._worker_id = worker_id
        self._runs: dict[tuple[str, int], _Run] = {}

    def take_up(self, running: Running, request: scheduler_pb2.InferenceRequest) -> None:
        """A request comes on board."""
        if not self._tracer.is_on or not request.traceparent:
            return
        attributes: Attributes = {
            names.REQUEST_MODEL: request.model,
            names.REQUEST_ID: request.request_id,
            names.WORKER_ID: self._worker_id,
            names.EPOCH: request.epoch,
            names.SLOT: running.slot,
            names.INPUT_TOKENS: running.prompt_tokens,
        }
        span = self._tracer.start(names.RUN, parent=request.traceparent, attributes=attributes)
        self._runs[running.key, running.epoch] = _Run(span, running.generated_tokens)

    def resumed(self, running: Running) -> None:
        """It is its turn again."""
        run = self._runs.get((running.key, running.epoch))
        if run is not None:
            run.span.event("resumed", {names.SLOT: running.slot})

    def on_step(self, step: engine_pb2.StepReport) -> None:
        """What the engine did in a step: parts of prompts, first tokens, turns that are over, ends."""
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
        for yielded in step.yielded:
            run = self._runs.get((yielded.key, yielded.epoch))
            if run is not None:
                run.span.event("yielded", _why(yielded))
        for ended in step.ended:
            self._end(ended)

    def gave_up(self, running: Running, outcome: str) -> None:
        """It goes on elsewhere, in good order."""
        run = self._runs.pop((running.key, running.epoch), None)
        if run is not None:
            run.span.set({names.OUTCOME: outcome, names.OUTPUT_TOKENS: running.generated_tokens})
            run.span.end()

    def lost(self, on_board: list[Running], why: str) -> None:
        """The engine died with all of these."""
        for running in on_board:
            if (run := self._runs.get((running.key, running.epoch))) is not None:
                run.span.fail("engine_died", why)
            self.gave_up(running, "engine_died")

    def _end(self, ended: engine_pb2.EngineEnded) -> None:
        run = self._runs.pop((ended.key, ended.epoch), None)
        if run is None:
            return
        run.span.set({names.OUTCOME: ended.outcome, names.OUTPUT_TOKENS: ended.completion_tokens})
        if ended.outcome not in _GOOD_ENDS:
            run.span.fail(ended.outcome)
        run.span.end()


def _why(yielded: engine_pb2.EngineYielded) -> dict[str, str]:
    return {
        names.REASON: _word(scheduler_pb2.YieldReason.Name(yielded.reason)),
        names.RESIDENCE: _word(scheduler_pb2.Residence.Name(yielded.residence)),
    }


def _word(enum_name: str) -> str:
    """YIELD_REASON_TIMESLICE -> timeslice"""
    return enum_name.rsplit("_", 1)[-1].lower()
