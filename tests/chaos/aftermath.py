"""What is still held when no client asks for anything any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats
import nats.errors
import nats.js.errors

from inferflux.cli.reach.client import Client
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import cluster_pb2

_POLL_S = 0.1
_TRACEBACK = "Traceback (most recent call last)"


def held(status: cluster_pb2.GetStatusResponse, *, workers: int) -> list[str]:
    """What a cluster without requests should not have (pure)."""
    if not status.HasField("scheduler"):
        return ["no scheduler answers"]
    scheduler = status.scheduler
    found = [f"{n} requests {what}" for what, n in _counts(status).items() if n]
    if len(scheduler.workers) != workers:
        found.append(f"{len(scheduler.workers)} of {workers} workers are there")
    for view in scheduler.workers:
        name = view.status.worker_id
        found += [
            f"{name}: slot {slot.slot} is {slot.state} ({slot.request_id}, epoch {slot.epoch})"
            for slot in view.slots
            if slot.state != "free"
        ]
        found += [f"{name}: {r.request_id} is resident, epoch {r.epoch}" for r in view.status.residents]
        if view.status.kv_cells_reserved:
            found.append(f"{name}: {view.status.kv_cells_reserved} KV cells are reserved")
        if view.status.kv_transfers.under_way:
            found.append(f"{name}: {view.status.kv_transfers.under_way} transfers are under way")
    return found


def _counts(status: cluster_pb2.GetStatusResponse) -> dict[str, int]:
    scheduler = status.scheduler
    return {"queued": scheduler.queued, "running": scheduler.running, "parked": scheduler.parked}


def tracebacks(log: str) -> list[str]:
    """The last line of each traceback in a log: unexpected errors (pure)."""
    found: list[str] = []
    is_inside = False
    for line in log.splitlines():
        if line.startswith(_TRACEBACK):
            is_inside = True
        elif is_inside and line and not line[0].isspace():
            found.append(line)
            is_inside = False
    return found


async def jobs_left(nats_url: str) -> list[str]:
    """Jobs that are still in the work queue: no scheduler has acknowledged them."""
    n = await _messages(nats_url, subjects.JOBS_STREAM, ">")
    return [n] if isinstance(n, str) else [f"{n} jobs are in the work queue"] if n else []


async def objects_left(nats_url: str) -> list[str]:
    """KV state that lies in nats-server though no worker fetches it."""
    n = await _messages(nats_url, subjects.KV_STREAM, f"$O.{subjects.KV_BUCKET}.C.>")
    return [n] if isinstance(n, str) else [f"{n} pieces of KV state are in NATS"] if n else []


async def _messages(nats_url: str, stream: str, subject: str) -> int | str:
    """Messages of a stream with such a subject; or why that is not known."""
    try:
        connection = await nats.connect(nats_url.split(","), connect_timeout=2, allow_reconnect=False)
    except (OSError, TimeoutError, nats.errors.Error) as error:
        return f"{stream} cannot be asked: {error!r}"
    try:
        state = (await connection.jetstream().stream_info(stream, subjects_filter=subject)).state
    except (TimeoutError, nats.errors.Error, nats.js.errors.Error) as error:
        return f"{stream} cannot be asked: {error!r}"
    finally:
        await connection.close()
    return int(sum((state.subjects or {}).values()))


async def until_free(
    client: Client, nats_url: str, *, workers: int, limit_s: float, clock: Callable[[], float]
) -> list[str]:
    """Wait until nothing is held; returns what still is after `limit_s` seconds."""
    deadline = clock() + limit_s
    while True:
        try:
            found = held(await client.status(), workers=workers)
        except InferFluxError as error:
            found = [f"the gateway cannot be asked: {error.message}"]
        found = found or await jobs_left(nats_url)
        if not found or clock() >= deadline:
            return found
        await asyncio.sleep(_POLL_S)
