"""Batches and probes to workers, by request and reply."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import DecodeError

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus
from inferflux.common.errors import InferFluxError, Unavailable
from inferflux.v1 import worker_pb2

from .core.actions import Dispatch, Probe
from .core.checks import check_answer

log = logs.get("scheduler.dispatch")


class AnswerSink(Protocol):
    def on_batch_answer(self, answer: worker_pb2.BatchAccepted) -> None: ...
    def on_batch_unanswered(self, batch_id: str, *, is_delivered: bool, is_gone: bool = False) -> None: ...
    def on_probe_unanswered(self, worker_id: str, incarnation: str, *, is_gone: bool) -> None: ...


async def dispatch(bus: Bus, action: Dispatch, sink: AnswerSink, *, timeout_s: float) -> None:
    """Send a batch and hand its answer on, or that there was none."""
    batch_id = action.batch.batch_id
    about = {"worker_id": action.worker_id, "request_ids": [i.request.request_id for i in action.batch.items]}
    subject = subjects.worker_batch(action.worker_id)
    payload = action.batch.SerializeToString()
    try:
        data = await bus.request(subject, payload, timeout_s=timeout_s)
        answer = worker_pb2.BatchAccepted.FromString(data)
        check_answer(answer)
    except Unavailable as error:
        log.warning("a batch was not delivered", reason=error.reason, **about)
        sink.on_batch_unanswered(batch_id, is_delivered=False, is_gone=_is_gone(error))
    except (InferFluxError, DecodeError) as error:
        log.warning("a batch went without an answer", error=str(error), **about)
        sink.on_batch_unanswered(batch_id, is_delivered=True)
    else:
        answer.batch_id = batch_id
        sink.on_batch_answer(answer)


async def probe(bus: Bus, action: Probe, sink: AnswerSink, *, timeout_s: float) -> None:
    """Find out whether a worker is there, and tell if it does not answer."""
    try:
        await bus.request(subjects.worker_probe(action.worker_id), b"", timeout_s=timeout_s)
    except InferFluxError as error:
        log.warning("a probe went without an answer", reason=error.reason, worker_id=action.worker_id)
        sink.on_probe_unanswered(action.worker_id, action.incarnation, is_gone=_is_gone(error))


def _is_gone(error: InferFluxError) -> bool:
    """Whether nobody listens where the worker did."""
    return error.reason == "NO_RESPONDERS"
