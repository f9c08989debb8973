"""Batches and probes to workers, by request and reply."""

from __future__ import annotations

from inferflux.common.bus import Bus
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.process import logs
from inferflux.scheduler.core.lifecycle.checks import check_answer
from inferflux.scheduler.core.types.actions import Dispatch, Probe
from inferflux.v1 import worker_pb2

from .guard import GuardedCore

log = logs.get("scheduler.dispatch")


async def dispatch(bus: Bus, action: Dispatch, guard: GuardedCore, *, timeout_s: float) -> None:
    """Send a batch and hand its answer on, or that there was none."""
    batch_id = action.batch.batch_id
    about = {"worker_id": action.worker_id, "request_ids": [i.request.request_id for i in action.batch.items]}
    subject = subjects.worker_batch(action.worker_id)
    payload = action.batch.SerializeToString()
    try:
        data = await bus.request(subject, payload, timeout_s=timeout_s)
        answer = checks.decode(worker_pb2.BatchAccepted, data)
        check_answer(answer)
    except Unavailable as error:
        log.warning("a batch was not delivered", reason=error.reason, **about)
        is_gone = _is_gone(error)
        guard.decide(
            "no answer",
            lambda core, now: core.on_batch_unanswered(
                batch_id, is_delivered=False, is_gone=is_gone, now=now
            ),
        )
    except InferFluxError as error:
        log.warning("a batch went without an answer", error=str(error), **about)
        guard.decide(
            "no answer", lambda core, now: core.on_batch_unanswered(batch_id, is_delivered=True, now=now)
        )
    else:
        answer.batch_id = batch_id
        guard.decide("an answer", lambda core, now: core.on_batch_answer(answer, now))


async def probe(bus: Bus, action: Probe, guard: GuardedCore, *, timeout_s: float) -> None:
    """Find out whether a worker is there, and tell if it does not answer."""
    try:
        await bus.request(subjects.worker_probe(action.worker_id), b"", timeout_s=timeout_s)
    except InferFluxError as error:
        log.warning("a probe went without an answer", reason=error.reason, worker_id=action.worker_id)
        is_gone = _is_gone(error)
        guard.decide(
            "no answer to a probe",
            lambda core, now: core.on_probe_unanswered(
                action.worker_id, action.incarnation, is_gone=is_gone, now=now
            ),
        )


def _is_gone(error: InferFluxError) -> bool:
    """True if no process subscribes to the subject of the worker."""
    return error.reason == "NO_RESPONDERS"
