"""Does faults to a stack, and puts everything right again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from inferflux.cli.stack import Stack, StartError

from . import disk, exchange
from .operator import Operator
from .processes import child_of
from .schedule import DISK, ENGINE, OF, PIECES, REQUESTS, TOKENIZER, TRANSFER, Action, Fault

# Beyond the stack's drain limit, what a process gets to end after SIGTERM.
STOP_LIMIT_S = 10.0
BACK_LIMIT_S = 40.0

# The longest that state is waited for that is on its way to or from a worker.
_TRANSFER_LIMIT_S = 3.0
# Faults of KV state on its way are more than those of one process.
_SHARE_OF_ALL = 3

_CHILDREN = {"worker": (ENGINE, DISK), "gateway": (TOKENIZER,)}
_CHILDREN_WITH_ROLES = {"worker": (ENGINE, TRANSFER, REQUESTS), "gateway": (TOKENIZER,)}
_MODULES = {
    ENGINE: "inferflux.worker.engine",
    DISK: "inferflux.worker.engine",
    TOKENIZER: "inferflux.gateway.tokenizer.tokenizer_process",
}

Say = Callable[[str], None]
Blame = Callable[[str, str], None]


def targets(stack: Stack, *, has_roles: bool = False) -> list[str]:
    """What a schedule may name: every process, the children they have, and the schedulers by their roles.

    Args:
        has_roles: whether there are prefill and decode workers, and state goes from one to another.
    """
    names: list[str] = [PIECES, REQUESTS] * _SHARE_OF_ALL if has_roles else []
    children = _CHILDREN_WITH_ROLES if has_roles else _CHILDREN
    for name, process in stack.processes.items():
        if process.spec.kind != "scheduler":
            names.append(name)
        names += [child + OF + name for child in children.get(process.spec.kind, ())]
        if has_roles and process.spec.kind == "worker":
            names.append(TRANSFER + OF + name)
    return [*names, "leader", "standby"]


class Inflictor:
    """Faults, each in a task of its own.

    Args:
        find_leader: the scheduler process that leads; empty when no scheduler reports that it leads.
        say: told of every fault in a sentence.
        blame: told of a process and what it did that it should not have.
        shm_bytes: most that may lie in shared memory for other workers.
    """

    def __init__(
        self,
        stack: Stack,
        *,
        find_leader: Callable[[], Awaitable[str]],
        say: Say,
        blame: Blame,
        clock: Callable[[], float],
        shm_bytes: int = 0,
    ) -> None:
        self._stack = stack
        self._shm_bytes = shm_bytes
        self.operator = Operator(lambda: stack.target)
        self._find_leader = find_leader
        self._say = say
        self._blame = blame
        self._clock = clock
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine_deaths: list[float] = []
        self.counts: Counter[str] = Counter()
        self.skipped = 0
        # Engines that were killed while they wrote a file.
        self.torn = 0

    def folders(self) -> list[Path]:
        """Those of the disk tiers of all engines that run."""
        found: list[Path] = []
        for process in self._stack.processes.values():
            pid = child_of(process.pid, _MODULES[DISK])
            folder = None if pid is None else disk.folder_of(pid)
            if folder is not None:
                found.append(folder)
        return found

    def exchange(self) -> Path | None:
        """The folder in shared memory of the engines that run; None while none does."""
        for process in self._stack.processes.values():
            pid = child_of(process.pid, _MODULES[ENGINE])
            folder = None if pid is None else exchange.exchange_of(pid)
            if folder is not None:
                return folder
        return None

    def engines_died_since(self, moment_s: float) -> int:
        return sum(at >= moment_s for at in self._engine_deaths)

    async def follow(self, faults: Sequence[Fault], began_s: float) -> None:
        """Do each fault at its time; returns when the last one has begun."""
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - self._clock()))
            task = asyncio.create_task(self._inflict(fault))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def until_over(self) -> None:
        """Return when everything is back."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Do nothing more; what is paused goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _inflict(self, fault: Fault) -> None:
        name = await self._resolve(fault.target)
        child, _, process = name.rpartition(OF)
        if process in self._busy:
            self.skipped += 1
            self._say(f"{fault}: skipped, {name} is not back from the last one")
            return
        self._busy.add(process)
        try:
            self._say(str(fault) if name == fault.target else f"{fault} ({name})")
            self.counts[fault.kind] += 1
            if child == REQUESTS:
                await self._drain(process, fault.lasts_s)
            elif name == REQUESTS:
                await self.operator.move(random.Random(str(fault)), fault.lasts_s)
            elif name == PIECES:
                await self._hit_pieces(fault)
            elif child == TRANSFER:
                await self._hit_transfer(process, fault)
            elif child:
                await self._hit_child(child, process, fault)
            elif fault.action is Action.PAUSE:
                await _pause(self._stack.processes[name].pid, fault.lasts_s)
                self._say(f"{name} goes on")
            else:
                await self._take_down(name, fault)
        finally:
            self._busy.discard(process)

    async def _resolve(self, target: str) -> str:
        """The process a role has at this moment."""
        if target not in ("leader", "standby"):
            return target
        schedulers = [p.name for p in self._stack.processes.values() if p.spec.kind == "scheduler"]
        leader = await self._find_leader()
        if target == "leader":
            return leader if leader in schedulers else schedulers[0]
        others = [name for name in schedulers if name != leader]
        return others[-1] if others else schedulers[0]

    async def _hit_child(self, child: str, parent: str, fault: Fault) -> None:
        pid = child_of(self._stack.processes[parent].pid, _MODULES[child])
        if pid is None:  # its parent has not started it again yet
            self.skipped += 1
        elif child == DISK:
            await self._hit_disk(pid, fault)
        elif fault.action is Action.PAUSE:
            await _pause(pid, fault.lasts_s)
            self._say(f"{fault.target} goes on")
        else:
            if child == ENGINE:
                self._engine_deaths.append(self._clock())
            _send(pid, signal.SIGKILL)

    async def _hit_disk(self, engine: int, fault: Fault) -> None:
        if fault.action is Action.FILL:
            with disk.full(engine):
                await asyncio.sleep(fault.lasts_s)
            self._say(f"{fault.target} takes writes again")
        elif fault.action is Action.SPOIL:
            folder = disk.folder_of(engine)
            n = disk.spoil(folder, random.Random(str(fault))) if folder is not None else 0
            self._say(f"{n} files of {fault.target} are damaged or foreign")
        elif await asyncio.to_thread(disk.kill_while_writing, engine, fault.lasts_s):
            self._engine_deaths.append(self._clock())
            self.torn += 1
            self._say(f"the engine died while it wrote to {fault.target}")
        else:
            self._say(f"{fault.target} was not written to")

    async def _hit_pieces(self, fault: Fault) -> None:
        folder = self.exchange()
        if folder is None:
            self.skipped += 1
        elif fault.action is Action.FILL:
            with exchange.full(folder, self._shm_bytes):
                await asyncio.sleep(fault.lasts_s)
            self._say(f"{fault.target} have room again")
        else:
            n = await asyncio.to_thread(exchange.spoil, folder, random.Random(str(fault)), fault.lasts_s)
            self._say(f"{n} of {fault.target} were not left alone")

    async def _hit_transfer(self, worker: str, fault: Fault) -> None:
        """Hit a worker, or its engine, in the middle of a transfer, which may be its own."""
        parent = self._stack.processes[worker].pid
        engine = child_of(parent, _MODULES[ENGINE])
        folder = None if engine is None else exchange.exchange_of(engine)
        if engine is None or folder is None:
            self.skipped += 1
        elif fault.action is Action.FILL:
            with disk.full(engine):
                await asyncio.sleep(fault.lasts_s)
            self._say(f"{worker} writes again")
        elif not await asyncio.to_thread(exchange.wait_for_piece, folder, _TRANSFER_LIMIT_S):
            self._say(f"{fault}: skipped, no state was on its way")
            self.skipped += 1
        elif fault.action is Action.TEAR:
            self._engine_deaths.append(self._clock())
            self.torn += 1
            _send(engine, signal.SIGKILL)
        elif fault.action is Action.PAUSE:
            paused = random.Random(str(fault)).choice((engine, parent))
            await _pause(paused, fault.lasts_s)
            self._say(f"{'the engine of ' if paused == engine else ''}{worker} goes on")
        else:
            await self._take_down(worker, fault)

    async def _drain(self, worker: str, lasts_s: float) -> None:
        await self.operator.drain(worker, lasts_s)
        if why := await self.operator.undrain(worker, BACK_LIMIT_S):
            self._blame(worker, f"was not undrained within {BACK_LIMIT_S:g} s: {why}")
        self._say(f"{worker} takes requests again")

    async def _take_down(self, name: str, fault: Fault) -> None:
        if fault.action is Action.STOP:
            await self._stop(name)
        await self._stack.kill(name)
        await asyncio.sleep(fault.lasts_s)
        await self._bring_back(name)

    async def _stop(self, name: str) -> None:
        process = self._stack.processes[name]
        process.is_held_down = True
        process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await process.wait()
        except TimeoutError:
            self._blame(name, f"did not end within {STOP_LIMIT_S:g} s of SIGTERM")

    async def _bring_back(self, name: str) -> None:
        """A start may fail while another fault lasts; it is tried again, as any supervisor would."""
        began_s = self._clock()
        while True:
            try:
                await self._stack.restart(name)
            except StartError as error:
                if self._clock() - began_s > BACK_LIMIT_S:
                    self._blame(name, f"did not come back within {BACK_LIMIT_S:g} s: {error}")
                    return
                self._say(f"{name} did not start: {error}")
                await asyncio.sleep(0.5)
            else:
                self._say(f"{name} is back after {self._clock() - began_s:.1f} s")
                return


async def _pause(pid: int, lasts_s: float) -> None:
    _send(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
