"""The JetStream streams and buckets: what they look like, making them, and whether they take writes."""

from __future__ import annotations

import asyncio
from typing import Any

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, Internal, Unavailable
from inferflux.common.contract.requests.stream_limits import StreamLimits

from . import replicas
from .jetstream import DUPLICATE_WINDOW_S, MESSAGE_ID, NANOSECONDS, STREAM_NOT_FOUND, exists
from .link import NATS_FORBIDDEN, STORE_UNAVAILABLE, ApiError, Link

# JetStream's numbers for the errors that mean something here.
STREAM_NAME_IN_USE = 10058
# What a purge fails with when the store has a write error.
STREAM_FAILED = 10051
# For the replicas that are asked for: of a cluster (to create, to update), and of a server alone.
_TOO_FEW_SERVERS = frozenset({10005, 10023, 10074})
# The reason of an error: a stream is not there, and this user may not make it.
STREAM_MISSING = "STREAM_MISSING"

# KV state that was not taken by then goes.
KV_MAX_AGE_S = 60

# How long a process waits at its start for the streams: for one that may make them, or a cluster that elects.
_STREAMS_WAIT_S = 20.0
_STREAMS_RETRY_S = 0.2


def stream_configs(limits: StreamLimits) -> list[dict[str, Any]]:
    """The streams InferFlux needs, as JetStream wants them described."""
    bucket, images, kv = subjects.TOKENIZERS_BUCKET, subjects.IMAGES_BUCKET, subjects.KV_BUCKET
    return [
        {
            "name": subjects.JOBS_STREAM,
            "subjects": [subjects.JOBS_ALL],
            "retention": "workqueue",
            "storage": "file",
            "discard": "new",
            "max_msgs": limits.queue_limit,
            "duplicate_window": DUPLICATE_WINDOW_S * NANOSECONDS,
            "allow_direct": True,
        },
        {
            "name": subjects.TOKENS_STREAM,
            "subjects": [subjects.TOKENS_ALL],
            "retention": "limits",
            "storage": "memory",
            "discard": "old",
            "max_age": round(limits.tokens_max_age_s * NANOSECONDS),
            "max_bytes": limits.tokens_max_bytes,
            "duplicate_window": round(min(limits.tokens_max_age_s, DUPLICATE_WINDOW_S) * NANOSECONDS),
            "no_ack": True,
            "allow_direct": True,
        },
        {
            "name": subjects.TOKENIZERS_STREAM,
            "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            "storage": "file",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
        {
            "name": subjects.IMAGES_STREAM,
            "subjects": [f"$O.{images}.C.>", f"$O.{images}.M.>"],
            "storage": "file",
            "discard": "new",
            "max_age": round(limits.images_max_age_s * NANOSECONDS),
            # Not in bytes: a server sets these aside, and has to have them.
            "max_msgs": limits.images_max_chunks,
            "duplicate_window": DUPLICATE_WINDOW_S * NANOSECONDS,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
        {
            "name": subjects.KV_STREAM,
            "subjects": [f"$O.{kv}.C.>", f"$O.{kv}.M.>"],
            "storage": "memory",
            "discard": "new",
            "max_age": KV_MAX_AGE_S * NANOSECONDS,
            "max_msgs": limits.kv_max_chunks,
            "duplicate_window": KV_MAX_AGE_S * NANOSECONDS,
            "allow_rollup_hdrs": True,
        },
        {
            "name": subjects.SCHEDULERS_STREAM,
            "subjects": [f"$KV.{subjects.SCHEDULERS_BUCKET}.>"],
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        },
    ]


async def ensure_streams(link: Link, limits: StreamLimits) -> None:
    """Create what is missing, change what differs; only look where this user may do neither.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer, cannot write, or has too few servers for
            the replicas that are asked for; or another user has to make a stream (STREAM_MISSING).
        Internal: a stream exists that cannot be changed to ours.
    """
    for config in stream_configs(limits):
        name = config["name"]
        asked = limits.tokens_replicas if config["storage"] == "memory" else limits.replicas
        if link.makes_streams:
            try:
                await _make_stream(link, config, asked)
            except Internal as error:
                if error.reason != NATS_FORBIDDEN:
                    raise
                link.makes_streams = False
        if not link.makes_streams and not await exists(link, name):
            raise Unavailable(f"no scheduler has made the stream {name} yet", reason=STREAM_MISSING)


async def are_missing(link: Link) -> bool:
    """True if one of the streams is gone.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    return not all([await exists(link, name) for name in subjects.STREAMS])


async def copies_behind(link: Link) -> set[str]:
    """The copies of streams that have not all that their leaders have, as `stream on server`.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    behind = set()
    for name in subjects.STREAMS:
        try:
            info = await link.api(f"STREAM.INFO.{name}")
        except ApiError as error:
            raise error.to_error() from error
        copies = info.get("cluster", {}).get("replicas") or []
        behind |= {f"{name} on {copy['name']}" for copy in copies if not copy.get("current")}
    return behind


async def until_streams(link: Link, limits: StreamLimits) -> None:
    """Ensure the streams, with some patience for a scheduler that has to make them, and for a cluster whose
    servers have just started.

    Raises:
        Unavailable, DeadlineExceeded, Internal: as `ensure_streams`.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _STREAMS_WAIT_S
    while True:
        try:
            await ensure_streams(link, limits)
        except (Unavailable, DeadlineExceeded) as error:
            is_electing = link.is_clustered and error.reason != STORE_UNAVAILABLE
            is_awaited = error.reason == STREAM_MISSING or is_electing
            if not is_awaited or loop.time() > deadline_s:
                raise
            await asyncio.sleep(_STREAMS_RETRY_S)
        else:
            return


async def _make_stream(link: Link, config: dict[str, Any], asked: int) -> None:
    name = config["name"]
    try:
        try:
            await _make_on(link, "CREATE", config, asked)
        except ApiError as error:
            if error.err_code != STREAM_NAME_IN_USE:
                raise
            info = await link.api(f"STREAM.INFO.{name}")
            await _make_on(link, "UPDATE", config, asked, present=int(info["config"]["num_replicas"]))
    except ApiError as error:
        raise error.to_error() from error


async def _make_on(
    link: Link, operation: str, config: dict[str, Any], asked: int, *, present: int = 0
) -> None:
    """Create or change a stream, on as many servers as it is to be on and there are.

    Raises:
        ApiError: JetStream refused.
        Unavailable, DeadlineExceeded: it does not answer, or there are too few servers (TOO_FEW_SERVERS).
    """
    name = config["name"]
    number = replicas.wanted(asked, is_clustered=link.is_clustered, present=present)
    try:
        await link.api(f"STREAM.{operation}.{name}", {**config, "num_replicas": number})
    except ApiError as error:
        # Of one copy it is something else that is short: the disk.
        if number == 1 or error.err_code not in _TOO_FEW_SERVERS:
            raise
        fewer = replicas.fallback(asked, present=present)
        if fewer in (None, number):
            message = f"NATS has too few servers for {number} replicas of {name} (INFERFLUX_NATS_REPLICAS)"
            raise Unavailable(message, reason="TOO_FEW_SERVERS") from error
        await link.api(f"STREAM.{operation}.{name}", {**config, "num_replicas": fewer})


# A subject of every stream that has to be written to. No model and no key has it.
_PROBES = {
    subjects.JOBS_STREAM: subjects.JOBS_PROBE,
    subjects.SCHEDULERS_STREAM: subjects.SCHEDULERS_PROBE,
}


async def write_problem(link: Link) -> str:
    """Why JetStream writes to the queue or the leases no more; "" while it does.

    A file store keeps its first write error until its server is started again, and leaves what is published
    then without an answer. A purge of a subject that nothing is published to is answered, and changes
    nothing.

    nats-server's /healthz tells of a write error only when a message was published after it. An
    acknowledgement can be the first that cannot be written, and no job is published to such a queue. So a
    message is published that cannot be stored.

    Raises:
        Unavailable, DeadlineExceeded: JetStream does not answer.
    """
    for stream, subject in _PROBES.items():
        try:
            await link.api(f"STREAM.PURGE.{stream}", {"filter": subject})
        except ApiError as error:
            if error.is_passing:
                raise error.to_error() from error
            if error.err_code == STREAM_FAILED:
                link.send(subject, b"", "", {MESSAGE_ID: subject})
            if error.err_code != STREAM_NOT_FOUND:
                return f"{stream}: {error.description}"
    return ""
