"""`python -m inferflux.worker.engine FD LIFELINE NOTE`: the engine process, with its socket, its lifeline and
its `image_note`.

Nothing but llama.cpp, numpy and what constraints need is imported here. One thread computes: llama.cpp's
thread team belongs to the thread that calls it. Another waits for the lifeline's end, a third compiles
constraints, a fourth waits for the process that checks answers, a fifth encodes images.

When the worker is gone, the engine leaves what its requests have computed in the exchange, if there is one,
and ends: a worker of this machine that goes on with them need not compute it again. The copies of its host
memory stay as well.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from inferflux.common.llama.native import on_abort
from inferflux.common.process.child.frames import ChildEnd
from inferflux.common.process.child.lifeline import exit_at_end_of, is_at_end
from inferflux.common.process.machine import heap
from inferflux.v1 import engine_pb2, scheduler_pb2

from .constraints.constraints import Constraints
from .kv.envelope import Identity
from .llama.context import DecodeError
from .llama.loading import LoadError
from .llama.native import Backend
from .llama.trials import SHARING
from .media.image_note import ImageNote
from .media.images import Images
from .plan.sequence import Sequence
from .plan.speculation import OFF
from .step.core import Engine
from .step.engine_paths import paths_of
from .tiers.disk import Disk, DiskUnavailable
from .tiers.space import Eviction
from .tiers.tiers import Tiers

_Worker = ChildEnd[engine_pb2.EngineCommand]
# While a long step is computed, commands are looked at this often.
_LOOK_EVERY_S = 0.002
# A report waits for others if one was sent within this time.
_TOGETHER_S = 0.002
# After the worker is gone: for what its requests have computed, and until this process ends in any case.
_RESCUE_S = 0.3
_GRACE_S = 1.0
# The kernel closes what a dead worker had one after the other.
_DEATH_S = 0.02


class Inbox:
    """The commands of the worker, in order.

    Args:
        worker: this process's end.
    """

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self._waiting: deque[engine_pb2.EngineCommand] = deque()
        self._looked_s = 0.0

    def take(self, wait_s: float | None) -> Iterator[engine_pb2.EngineCommand]:
        """Every command that has arrived; waits up to `wait_s` seconds for the first, for ever with None.

        Raises:
            EOFError: the worker closed its end.
        """
        while self._waiting:
            wait_s = 0.0
            yield self._waiting.popleft()
        yield from self._worker.arrived(wait_s)

    def arrived(self) -> list[engine_pb2.EngineCommand]:
        """Return the commands that have arrived since the last look; `take` gives them as well."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        try:
            new = list(self._worker.arrived(0.0))
        except EOFError:  # `take` raises it again
            return []
        self._waiting += new
        return new


class Outbox:
    """Reports on their way to the worker.

    Those of short steps of decoding go together: a message wakes a process up at each hop to the reader, and
    each takes a core from the engine for longer than such a step.

    Args:
        worker: this process's end.
    """

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self._waiting: list[engine_pb2.EngineReport] = []
        self._sent_s = 0.0

    @property
    def has_waiting(self) -> bool:
        """True if a report waits."""
        return bool(self._waiting)

    def add(self, report: engine_pb2.EngineReport) -> None:
        """Send a report at once, if one ends or changes its place in it, or if none was sent for 2 ms. Others
        wait for the next one."""
        self._waiting.append(report)
        step = report.step
        if step.finished or step.residences or time.monotonic() - self._sent_s >= _TOGETHER_S:
            self.send()

    def send(self) -> None:
        """Send all that waits."""
        if self._waiting:
            self._worker.send(*self._waiting)
            self._waiting.clear()
            self._sent_s = time.monotonic()


def run(worker: _Worker, note: ImageNote, lifeline: int) -> None:
    """Serve until the worker closes its end.

    Args:
        lifeline: its end says that the worker is gone, and has not just closed its end.
    """
    heap.set_apart()
    inbox, outbox = Inbox(worker), Outbox(worker)
    engine = _load(worker, inbox, note)
    try:
        while True:
            serve_step(engine, worker, inbox, outbox)
    except (EOFError, ConnectionError):
        engine.hand_over_all(_RESCUE_S)
        if is_at_end(lifeline, wait_s=_DEATH_S):
            os._exit(0)  # what it has in shared memory stays, as when it is killed
    except DecodeError:
        outbox.send()
        raise
    finally:
        engine.close()


def serve_step(engine: Engine, worker: _Worker, inbox: Inbox, outbox: Outbox) -> None:
    """Take up what arrived, make a step, and report it; then look after the KV cache."""
    idle_s = engine.idle_s()
    if idle_s != 0:
        outbox.send()
    for command in inbox.take(idle_s):
        if command.HasField("flush"):
            outbox.send()
            flush = command.flush
            flushed = engine.flush(flush.limit_ms / 1000, requests_only=flush.requests_only)
            _report(engine, outbox)
            outbox.send()
            worker.send(flushed)
        engine.obey(command)
    if outbox.has_waiting and any(sequence.is_prefilling for sequence in engine.running.values()):
        outbox.send()  # a step with a prompt is no short one
    engine.poll()
    if engine.pieces.has_news:  # those that wait for state wait for no step
        _report(engine, outbox)
        outbox.send()
    engine.compute()
    _report(engine, outbox)
    if engine.check_ledger():
        _report(engine, outbox)


def _report(engine: Engine, outbox: Outbox) -> None:
    report = engine.take_report()
    if report is None:
        outbox.send()
    else:
        outbox.add(report)


def _load(worker: _Worker, inbox: Inbox, note: ImageNote) -> Engine:
    config = worker.receive().load
    try:
        backend = Backend(config)
        disk, disk_error = _disk(config, backend.identity)
        backend.note_images(note)
        constraints = Constraints(backend.vocab, backend.trials.constraint_error)
        backend.trials.constraint_error = constraints.why_not
        tiers: Tiers[Sequence] = Tiers(
            backend.identity,
            host_bytes=config.host_bytes,
            host_eviction=Eviction(config.host_eviction or Eviction.LRU.value),
            disk=disk,
            disk_bytes=config.disk_bytes,
            is_divisible=backend.cuts_states,
        )
        tiers.pieces.on_done = worker.waker()
        engine = Engine(
            backend,
            worker_id=config.worker_id,
            max_itl_factor=config.max_itl_factor,
            step_limit_s=config.step_limit_s,
            tiers=tiers,
            constraints=None if constraints.why_not else constraints,
            has_prefix_cache=config.prefix_cache,
            disk_prompt_tokens=config.disk_prompt_tokens,
            speculation=config.speculation or OFF,
            is_deterministic=config.deterministic,
            draft_model=backend.new_draft_model(config) if config.draft_model_path else None,
            images=Images(backend.projector, max_bytes=config.image_bytes, note=note)
            if backend.projector
            else None,
            arrived=inbox.arrived,
        )
    except (LoadError, DecodeError) as error:
        worker.send(engine_pb2.EngineReport(load_error=str(error)))
        raise SystemExit(1) from None
    kind, reason = _sharing(config, backend)
    ready = engine_pb2.EngineReady(
        kv_cells=backend.cells,
        context_length=backend.context_length,
        vocabulary_size=backend.vocab.size,
        slots=backend.slots,
        parameters=backend.parameters,
        prefill_cells=backend.prefill_cells,
        prefill_context_error=backend.prefill_context_error,
        prefix_sharing=kind,
        prefix_sharing_reason=reason,
        has_chat_template=backend.vocab.chat_template is not None,
        disk_error=disk_error,
        host_bytes=config.host_bytes,
        exchange=disk.exchange if disk is not None else "",
        kv_bytes=backend.kv_bytes,
        constraint_error=constraints.why_not,
        speculation_error=backend.speculation_error,
        deterministic_error=backend.open_deterministic() if config.deterministic else None,
        trials=backend.trials.to_message(),
        device_context=backend.device_context,
        expert_ranks=backend.expert_ranks,
        takes_images=backend.projector is not None and backend.projector.takes_images,
        takes_audio=backend.projector is not None and backend.projector.takes_audio,
        adapters=[engine.load_adapter_now(adapter) for adapter in config.adapters],
    )
    ready.paths.extend(paths_of(ready))
    worker.send(engine_pb2.EngineReport(ready=ready))
    return engine


def _sharing(
    config: engine_pb2.EngineConfig, backend: Backend
) -> tuple[scheduler_pb2.PrefixSharing.ValueType, str]:
    """(how prefixes are shared, why not any part of them)."""
    if not config.prefix_cache:
        return scheduler_pb2.PREFIX_SHARING_NONE, "INFERFLUX_WORKER_PREFIX_CACHE turns it off"
    if backend.sharing_error:
        return scheduler_pb2.PREFIX_SHARING_NONE, backend.sharing_error
    return SHARING[backend.sharing.kind], backend.sharing.reason


def _disk(config: engine_pb2.EngineConfig, identity: Identity) -> tuple[Disk | None, str]:
    """(the folder of states if one is asked for, why there is none all the same)."""
    root = Path(config.disk_path)
    if not config.disk_path or config.disk_bytes == 0:
        return None, ""
    if config.is_exchange_only and not root.parent.parent.is_dir():
        return None, ""  # the machine has no shared memory
    try:
        return Disk(root, identity, is_tier=not config.is_exchange_only), ""
    except DiskUnavailable as error:
        return None, str(error)


if __name__ == "__main__":
    # The worker decides when the engine ends; a Ctrl-C in the terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_at_end_of(int(sys.argv[2]), grace_s=_GRACE_S)
    try:
        worker_end = ChildEnd(socket.socket(fileno=int(sys.argv[1])), engine_pb2.EngineCommand.FromString)
        note = ImageNote(int(sys.argv[3]))
        on_abort.append(note.on_abort)
        run(worker_end, note, int(sys.argv[2]))
    except (EOFError, ConnectionError):
        sys.exit(0)
