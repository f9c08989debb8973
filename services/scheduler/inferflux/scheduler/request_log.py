"""Logs of the scheduler about its requests. Each line has request id and tenant, and the trace id if any."""

from __future__ import annotations

from inferflux.common.process import logs
from inferflux.common.tracing import trace_id_of

from .core.types import actions
from .core.types.jobs import RequestKey
from .spans import traceparent_of

log = logs.get("scheduler.request")


def note(action: actions.Action) -> None:
    """Log what an action means for its request. A request without trouble has a single line at `info`."""
    match action:
        case actions.Dispatch():
            for item, handle in zip(action.batch.items, action.handles, strict=True):
                request = item.request
                about = _about(RequestKey(request.tenant, request.request_id), handle)
                log.debug("dispatches a request", worker_id=action.worker_id, epoch=request.epoch, **about)
        case actions.CountRetry():
            about = _about(action.key, action.handle)
            log.warning("a request goes back to the queue", cause=action.cause, **about)
        case actions.CountRefusal():
            about = _about(action.key, action.handle)
            log.warning(
                "a worker refused a request", worker_id=action.worker_id, reason=action.reason, **about
            )
        case actions.CountUnread():
            log.info("cancels a request without a reader", **_about(action.key, action.handle))
        case actions.Preempted():
            about = _about(action.key, action.handle)
            log.debug("preempts a request", worker_id=action.worker_id, by=action.by.request_id, **about)
        case actions.Yielded():
            about = _about(action.key, action.handle)
            log.debug("a request has yielded", worker_id=action.worker_id, reason=action.reason, **about)
        case actions.Resumed():
            about = _about(action.key, action.handle)
            log.debug("resumes a request", worker_id=action.worker_id, waited_s=action.waited_s, **about)
        case actions.Follows():
            move = action.move
            about = _about(action.key, action.handle)
            log.debug("a request follows its state", worker_id=move.to_id, left=move.from_id, **about)
        case actions.MoveEnded():
            move = action.move
            about = {"why": move.why.value, "outcome": move.outcome, "worker_id": move.to_id}
            about |= {"left": move.from_id, "error": move.error} if move.error else {"left": move.from_id}
            say = log.debug if move.is_split else log.info
            say("a move has ended", tokens=move.tokens, **about, **_about(action.key, action.handle))
        case actions.Ack():
            log.info("a request has finished", outcome=action.outcome, **_about(action.key, action.handle))


def queued(key: RequestKey, model: str, handle: object) -> None:
    """A job came from the work queue."""
    log.debug("queues a request", model=model, **_about(key, handle))


def _about(key: RequestKey, handle: object) -> dict[str, str]:
    return logs.of_request(key.request_id, key.tenant, trace_id_of(traceparent_of(handle)))
