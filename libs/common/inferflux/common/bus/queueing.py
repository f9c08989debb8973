"""Putting a job into the work queue, exactly once whatever the connection does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from inferflux.common.contract import attempts, subjects
from inferflux.common.contract.errors import DeadlineExceeded, ResourceExhausted, Unavailable

from . import jetstream
from .link import ELECTING, STORE_UNAVAILABLE, ApiError, Link

_ATTEMPT = "Inferflux-Attempt"
_ANSWER_TIMEOUT_S = 1.5
_CONNECTED_TIMEOUT_S = 6.0
# A cluster takes 4 to 9 s to agree on who leads the queue after its leader was killed.
_TOTAL_TIMEOUT_S = 12.0
_RETRY_WAIT_S = 0.1


async def enqueue(
    link: Link,
    until_connected: Callable[[], Awaitable[None]],
    write_problem: Callable[[], str],
    subject: str,
    payload: bytes,
    *,
    msg_id: str,
    attempt: str = "",
    headers: Mapping[str, str] | None = None,
) -> str:
    """Publish to the work queue and wait until it is stored.

    A message that went unanswered, or refused by servers that elected meanwhile, may have been stored all the
    same. So it is published again under the same message id, which JetStream drops then. A header with the
    attempt tells that from someone else's use of the id.

    Args:
        attempt: see `attempts`; empty draws one.
        write_problem: why JetStream does not write, "" while it does.

    Returns:
        The attempt of the job that is in the queue: this one, or that of the same call, sent before. Empty if
        the id was used for another call in the last two minutes.

    Raises:
        ResourceExhausted: the queue is full.
        Unavailable: not stored (QUEUE_UNAVAILABLE; STORE_UNAVAILABLE when JetStream does not write), or
            it is unknown (OUTCOME_UNKNOWN).
    """
    attempt = attempt or attempts.new()
    all_headers = {**(headers or {}), jetstream.MESSAGE_ID: msg_id, _ATTEMPT: attempt}
    # Whether a message of ours went without an answer; whether the queue may have one under the id, which may
    # be ours too, sent before, until it is read whose it is.
    is_unknown = is_doubtful = False
    last = "not connected to NATS"
    try:
        async with asyncio.timeout(_TOTAL_TIMEOUT_S):
            while True:
                async with asyncio.timeout(_CONNECTED_TIMEOUT_S):
                    await until_connected()
                if write_problem():
                    raise _unknown(last) if is_unknown or is_doubtful else not_writing()
                try:
                    answer = await _publish(link, subject, payload, all_headers)
                except DeadlineExceeded as error:
                    is_unknown, last = True, error.message
                except Unavailable as error:
                    if error.reason == STORE_UNAVAILABLE:
                        raise _unknown(last) if is_unknown or is_doubtful else error from None
                    # JetStream is not up yet, or the stream is being made anew after a restart.
                    last = error.message
                    is_doubtful |= error.reason == ELECTING
                    await asyncio.sleep(_RETRY_WAIT_S)
                else:
                    if not answer.get("duplicate"):
                        return attempt
                    is_doubtful = True
                    try:
                        return await _stored_as(link, answer["seq"], attempt, is_unknown=is_unknown)
                    except (DeadlineExceeded, Unavailable) as error:
                        last = error.message
                        await asyncio.sleep(_RETRY_WAIT_S)
    except TimeoutError:
        if is_unknown or is_doubtful:
            raise _unknown(last) from None
        raise Unavailable(f"the job could not be queued: {last}", reason="QUEUE_UNAVAILABLE") from None


def not_writing() -> Unavailable:
    """Error of every job while JetStream does not write."""
    return Unavailable(
        "the work queue cannot be written to at present", reason=STORE_UNAVAILABLE, retry_delay_s=2.0
    )


def _unknown(why: str) -> Unavailable:
    return Unavailable(f"it is not known whether the job was queued: {why}", reason="OUTCOME_UNKNOWN")


async def _publish(link: Link, subject: str, payload: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    reply = await link.request(subject, payload, timeout_s=_ANSWER_TIMEOUT_S, headers=headers)
    answer: dict[str, Any] = json.loads(reply.data)
    if error := answer.get("error"):
        description = error.get("description", "")
        if error.get("err_code") == jetstream.STREAM_STORE_FAILED and "maximum" in description:
            raise ResourceExhausted("the queue is full", reason="QUEUE_FULL")
        raise ApiError(
            f"publish to {subject}", error.get("code", 500), error.get("err_code", 0), description
        ).to_error()
    return answer


async def _stored_as(link: Link, sequence: int, attempt: str, *, is_unknown: bool) -> str:
    """The attempt of the stored message, "" if it is of another call.

    One that is gone was taken up and finished: it was this one if this one may have been stored.
    """
    headers = await jetstream.read_headers(link, subjects.JOBS_STREAM, sequence)
    if headers is None:
        return attempt if is_unknown else ""
    stored = headers.get(_ATTEMPT, "")
    return stored if attempts.is_same(stored, attempt) else ""
