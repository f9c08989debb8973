"""A worker process that loads a tiny model, answers with it, and unloads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.host import HostProcess
from harness.servers import ServerProcess
from harness.worker import batch_item, token_ids

from inferflux.common.bus import Bus
from inferflux.v1 import model_pb2

_ENDED = (model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_FAILED)


@asynccontextmanager
async def a_host(folder: Path) -> AsyncIterator[HostProcess]:
    """A worker process without models, on a NATS server of its own."""
    nats = ServerProcess.nats(folder / "nats")
    nats.start()
    bus = await Bus.connect(nats.url, name="architectures")
    host = HostProcess(folder, nats.url, bus, "host", INFERFLUX_WORKER_THREADS="1")
    try:
        await host.start_ready()
        yield host
    finally:
        host.kill()
        await bus.close()
        nats.stop()


async def why_not_hosted(host: HostProcess, path: Path) -> str:
    """Why a worker cannot load, serve and unload a model; empty where it can."""
    name = path.stem
    known = await host.register(path)
    if known.code:
        return known.message
    try:
        await host.load(name)
        await host.until(lambda: host.states.get(name) in _ENDED)
        if host.states[name] == model_pb2.MODEL_STATE_FAILED:
            return host.model(name).reason
        await host.until_ready(name)
        item = batch_item(f"to-{name}", prompt=list(range(20, 60)), model=name, max_tokens=8)
        item.request.params.ignore_eos = True
        n_tokens = len(token_ids(await host.ask(name, item)))
        return "" if n_tokens == 8 else f"{n_tokens} of 8 tokens"
    finally:
        await host.forget(name)
        await host.until(lambda: name not in host.states)
