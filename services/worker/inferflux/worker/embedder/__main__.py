"""`python -m inferflux.worker.embedder FD LIFELINE`: the engine process of a model that embeds or ranks.

As `inferflux.worker.engine`, it is started by `EngineHost`, told what to load, and reports after each step.
It ends with its worker: there is no state that would be worth keeping.
"""

from __future__ import annotations

import signal
import socket
import sys

from inferflux.common.process.child.frames import ChildEnd
from inferflux.common.process.child.lifeline import exit_at_end_of
from inferflux.common.process.machine import heap
from inferflux.v1 import device_pb2, engine_pb2, scheduler_pb2
from inferflux.worker.engine.llama.loading import LoadError

from .backend import Backend, EmbedError
from .core import Embedder

_Worker = ChildEnd[engine_pb2.EngineCommand]


def run(worker: _Worker) -> None:
    """Serve until the worker closes its end."""
    heap.set_apart()
    embedder = _load(worker)
    while True:
        for command in worker.arrived(embedder.idle_s()):
            if command.HasField("flush"):
                worker.send(engine_pb2.EngineReport(flushed=engine_pb2.EngineFlushed()))
            embedder.obey(command)
        embedder.step()
        report = embedder.take_report()
        if report is not None:
            worker.send(report)


def _load(worker: _Worker) -> Embedder:
    config = worker.receive().load
    try:
        backend = Backend(config)
    except (LoadError, EmbedError) as error:
        worker.send(engine_pb2.EngineReport(load_error=str(error)))
        raise SystemExit(1) from None
    ready = engine_pb2.EngineReady(
        slots=config.slots,
        kv_cells=config.kv_cells,
        context_length=backend.context_length,
        vocabulary_size=backend.vocab.size,
        parameters=backend.parameters,
        embedding_length=backend.width,
        prefix_sharing=scheduler_pb2.PREFIX_SHARING_NONE,
        constraint_error="it generates nothing",
        speculation_error="it generates nothing",
        device_context=device_pb2.DeviceContext(
            flash_attention=backend.flash_attention,
            flash_attention_by_context={"embedding": backend.flash_attention},
        ),
    )
    worker.send(engine_pb2.EngineReport(ready=ready))
    return Embedder(backend)


if __name__ == "__main__":
    # The worker decides when the engine ends; a Ctrl-C in the terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_at_end_of(int(sys.argv[2]), grace_s=0.0)
    try:
        run(ChildEnd(socket.socket(fileno=int(sys.argv[1])), engine_pb2.EngineCommand.FromString))
    except (EOFError, ConnectionError):
        sys.exit(0)
