"""Log lines of a worker's requests. Each line has request id and tenant, and the trace id if any."""

from __future__ import annotations

from typing import Any

from inferflux.common.process import logs
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2

from .residents import Refused, Resident

log = logs.get("worker.request")


def taken_up(resident: Resident) -> None:
    """It becomes resident."""
    log.debug("takes a request up", prompt_tokens=resident.prompt_tokens, **_about(resident))


def refused(item: worker_pb2.BatchItem, refusal: Refused) -> None:
    """A request of a batch cannot be taken up."""
    request = item.request
    about = logs.of_request(request.request_id, request.tenant)
    log.debug("refuses a request", why=str(refusal), epoch=request.epoch, **about)


def resumed(resident: Resident) -> None:
    """The engine is asked to run it again."""
    log.debug("resumes a request", **_about(resident))


def yielded(resident: Resident, reason: scheduler_pb2.YieldReason.ValueType) -> None:
    """It does not run any more, and stays resident."""
    why = scheduler_pb2.YieldReason.Name(reason).removeprefix("YIELD_REASON_").lower()
    log.debug("a request has yielded", reason=why, **_about(resident))


def finished(resident: Resident, ended: engine_pb2.EngineFinished) -> None:
    """The engine is done with it."""
    tokens = ended.completion_tokens
    log.debug("a request has finished", outcome=ended.outcome, completion_tokens=tokens, **_about(resident))


def left(resident: Resident, why: str) -> None:
    """It leaves the worker before its end: another attempt goes on with it, or it is dropped."""
    log.info("a request leaves", why=why, generated_tokens=resident.generated_tokens, **_about(resident))


def _about(resident: Resident) -> dict[str, Any]:
    about = logs.of_request(resident.request_id, resident.tenant, resident.trace_id)
    return {**about, "epoch": resident.epoch}
