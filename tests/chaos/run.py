"""One chaos run: a stack, a load, faults, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from harness.client import Client, countdown
from harness.leaders import leader_of

from inferflux.cli.reach.client import Client as AdminClient
from inferflux.cli.stack import EventKind, Stack, StackEvent, StackOptions, StartError
from inferflux.common.bus import Bus
from inferflux.common.bus.streams import KV_MAX_AGE_S
from inferflux.common.calls import grpc_client
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.requests.priority import HIGHEST
from inferflux.common.process import logs
from inferflux.v1 import cluster_pb2, policy_pb2, policy_pb2_grpc

from . import aftermath, disk, exchange, processes, published
from .caller import RESUME_WINDOW_S, Caller
from .inflict import Inflictor, targets
from .published import Published
from .report import Report, summary
from .schedule import Fault, plan
from .workload import PROMPTS, countdown_text, orders

WORKERS = 2
PREFILL, DECODE = 1, 2
TENANTS = ("default", "acme", "globex")
_START_LIMIT_S = 120.0
# What a run may take beside its load, the end of the processes not counted.
_EXTRA_S = _START_LIMIT_S + 50.0
_DRAIN_LIMIT_S = 3.0
# What requests get to end after the last one began, and the last fault is over.
_LAST_LIMIT_S = 25.0
_FREE_LIMIT_S = 15.0
# What is written to disk when everything is over is there by then.
_WRITES_LIMIT_S = 5.0
_CLOCK = time.monotonic

_DISK_BYTES = 8 << 20

# What the environment does not say otherwise.
_DEFAULTS = {
    "INFERFLUX_FAIRNESS_PREEMPT": "true",
    "INFERFLUX_FAIRNESS_HIGH_PRI": "5",
    "INFERFLUX_FAIRNESS_TIMESLICE": "16",
    # Random faults may take both workers at once, and one request's worker again and again.
    "INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S": "40",
    "INFERFLUX_SCHEDULER_MAX_RETRIES": "100",
    "INFERFLUX_WORKER_SLOTS": "4",
    "INFERFLUX_WORKER_THREADS": "1",
    # Less than all sequences together want, so that some are swapped out.
    "INFERFLUX_WORKER_KV_CELLS": "768",
    # Room for a few of them, and on disk for some more.
    "INFERFLUX_WORKER_HOST_BYTES": str(1 << 20),
    "INFERFLUX_WORKER_DISK_BYTES": str(_DISK_BYTES),
}
_SHM_BYTES = 64 << 20
# What the killed have left is removed by then: after 60 s by workers, and by nats-server.
_LEFT_LIMIT_S = KV_MAX_AGE_S + 20.0
_DEFAULTS_WITH_ROLES = _DEFAULTS | {
    # Less than the prompts of all slots want.
    "INFERFLUX_WORKER_KV_CELLS": "4096",
    "INFERFLUX_WORKER_SHM_BYTES": str(_SHM_BYTES),
}
_TRANSPORTS = ("shm", "tcp", "nats", "auto")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked of a run.

    Attributes:
        has_roles: prefill and decode workers, and long prompts.
    """

    seed: int
    seconds: float
    streams: int
    has_roles: bool = False
    is_calm: bool = False
    keeps_logs: bool = False
    is_verbose: bool = False


async def run(settings: Settings) -> int:
    """Do it; returns the exit status, 1 for any breach."""
    logs.configure("chaos", "error")
    _end_on(signal.SIGTERM)
    folder = Path(tempfile.mkdtemp(prefix=f"inferflux-chaos-{settings.seed}-"))
    mark = uuid.uuid4().hex
    os.environ[processes.MARK] = mark
    report = Report(folder, is_verbose=settings.is_verbose)
    chaos = Chaos(settings, folder, report, mark)
    try:
        with report.shown():
            async with asyncio.timeout(settings.seconds + chaos.extra_s):
                await chaos.run()
    except TimeoutError:
        report.breach("the run", f"was not over {chaos.extra_s:g} s after its load")
    except asyncio.CancelledError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except StartError as error:
        report.breach("the stack", " | ".join([f"did not start: {error}", *error.log_tail]))
    for pid, command in processes.marked(mark).items():
        report.breach(f"process {pid}", f"was left behind: {command}")
    keeps = settings.keeps_logs or bool(report.breaches)
    report.close(chaos.summary(), folder if keeps else None)
    if not keeps:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.breaches else 0


def _end_on(number: signal.Signals) -> None:
    """As SIGINT does it: nothing is left behind."""
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


class Chaos:
    """The run itself."""

    def __init__(self, settings: Settings, folder: Path, report: Report, mark: str) -> None:
        self._settings = settings
        self._report = report
        self._mark = mark
        options = _options(folder, settings)
        self._stack = Stack(options, observe=self._observe)
        self._n_workers = options.n_workers
        self._disk_bytes = int(options.env["INFERFLUX_WORKER_DISK_BYTES"])
        self._exchange: Path | None = None
        self._fetched: dict[str, int] = {}
        self._expected: dict[str, list[int]] = {}
        self._published = Published(self._expected)
        self._inflictor = Inflictor(
            self._stack,
            find_leader=self._leader,
            say=report.event,
            blame=report.breach,
            clock=_CLOCK,
            shm_bytes=_SHM_BYTES,
        )
        self._bus: Bus | None = None
        self._began_s = _CLOCK()

    @property
    def extra_s(self) -> float:
        """What the run may take beside its load."""
        return _EXTRA_S + (_LEFT_LIMIT_S if self._settings.has_roles else 0.0)

    def summary(self) -> str:
        return summary(
            seed=self._settings.seed,
            seconds=self._settings.seconds,
            tally=self._report.tally,
            faults=self._inflictor.counts,
            skipped=self._inflictor.skipped,
            breaches=len(self._report.breaches),
            fetched=sum(self._fetched.values()) if self._settings.has_roles else None,
        )

    async def run(self) -> None:
        async with self._stack:
            self._bus = await published.listen(self._stack.nats_url, self._published)
            try:
                async with _clients(self._stack) as clients:
                    await self._go(clients)
            except asyncio.CancelledError:  # there is no time for an end in order
                self._stack.kill_all()
                raise
            finally:
                await self._bus.close()
        if self._exchange is not None:
            for what in exchange.remains(self._exchange):
                self._report.breach("when all had ended", what)

    async def _go(self, clients: list[Client]) -> None:
        answers = await _references(clients[0])
        caller = Caller(
            clients,
            answers,
            is_poisoned=self._is_poisoned,
            clock=_CLOCK,
            resume_window_s=RESUME_WINDOW_S,
        )
        self._began_s = _CLOCK()
        self._report.event("the load begins")
        if self._settings.has_roles:
            self._exchange = self._inflictor.exchange()
            self._report.event(f"{_transport(self._settings.seed)} carries KV state, in {self._exchange}")
        clock = asyncio.create_task(self._tell_time())
        faults = [] if self._settings.is_calm else self._plan()
        counting = asyncio.create_task(self._count_fetched())
        following = asyncio.create_task(self._inflictor.follow(faults, self._began_s))
        try:
            await self._load(caller, answers)
            await following
            await self._inflictor.until_over()
            await self._look_around()
        finally:
            for task in (clock, counting, following):
                task.cancel()
            await self._inflictor.close()

    async def _load(self, caller: Caller, answers: dict[tuple[int, int], list[int]]) -> None:
        """Keep the streams busy for the time asked for, then see them end."""
        until = self._began_s + self._settings.seconds
        has_long = self._settings.has_roles

        async def one_after_the_other(stream: int) -> None:
            for order in orders(self._settings.seed, stream, tenants=len(TENANTS), has_long=has_long):
                if _CLOCK() >= until:
                    return
                self._expected[order.request_id] = answers[order.start, order.end]
                self._report.ended(await caller.serve(order))

        streams = [asyncio.create_task(one_after_the_other(i)) for i in range(self._settings.streams)]
        await asyncio.wait(streams, timeout=self._settings.seconds)
        # On a busy machine it takes a while until all are back.
        await self._inflictor.until_over()
        _, late = await asyncio.wait(streams, timeout=_LAST_LIMIT_S)
        for task in late:
            task.cancel()
        for transcript in list(caller.underway.values()):
            self._report.breach(
                transcript.request_id,
                f"was not over {_LAST_LIMIT_S:g} s after the load ({transcript.describe()})",
            )
        for result in await asyncio.gather(*streams, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._report.event("the load is over")

    async def _look_around(self) -> None:
        async with AdminClient(self._stack.target) as client:
            found = await aftermath.until_free(
                client, self._stack.nats_url, workers=self._n_workers, limit_s=_FREE_LIMIT_S, clock=_CLOCK
            )
        for what in found:
            self._report.breach("afterwards", f"{what}, {_FREE_LIMIT_S:g} s after everything")
        if self._settings.has_roles:
            await self._look_for_state()
        else:
            for wrong in await self._wrongs_of_disks():
                self._report.breach("the disk tier", wrong)
        for request_id, wrongs in self._published.wrongs().items():
            for wrong in wrongs:
                self._report.breach(request_id, wrong)
        for process in self._stack.processes.values():
            for error in aftermath.tracebacks(process.log_file.read_text(errors="replace")):
                self._report.breach(process.name, f"logged an unexpected error: {error}")
        managed = [process.pid for process in self._stack.processes.values()]
        for pid, command in processes.left_behind(self._mark, managed).items():
            self._report.breach(f"process {pid}", f"has lost its parent and runs on: {command}")
        self._report.event(f"looked around: {self._published.chunks:,} published chunks were seen")
        self._report.event(f"{self._inflictor.torn} engines were killed while they wrote a file")

    async def _look_for_state(self) -> None:
        """Look for KV state that is on its way no more, and lies somewhere."""
        folder = self._exchange
        if folder is None:
            self._report.breach("afterwards", "no engine has an exchange")
            return
        began_s = _CLOCK()
        while True:
            pieces = exchange.left(folder, await self._incarnations())
            objects = await aftermath.objects_left(self._stack.nats_url)
            waited_s = _CLOCK() - began_s
            if waited_s > _LEFT_LIMIT_S or not (pieces or objects):
                break
            await asyncio.sleep(0.2)
        for what in (*pieces, *objects):
            self._report.breach("afterwards", f"{what}, {waited_s:.0f} s after everything")
        operator, n = self._inflictor.operator, sum(self._fetched.values())
        self._report.event(
            f"state was fetched {n} times; an operator moved {operator.moved} requests, and could not move "
            f"{operator.refused.total()}: {dict(operator.refused)}"
        )

    async def _incarnations(self) -> set[str]:
        async with AdminClient(self._stack.target) as client:
            status = await client.status()
        self._note_fetched(status)
        return {view.status.incarnation for view in status.scheduler.workers}

    async def _count_fetched(self) -> None:
        """Note how much state each worker has fetched, by its incarnation."""
        async with AdminClient(self._stack.target) as client:
            while self._settings.has_roles:
                with contextlib.suppress(InferFluxError):
                    self._note_fetched(await client.status())
                await asyncio.sleep(0.5)

    def _note_fetched(self, status: cluster_pb2.GetStatusResponse) -> None:
        for view in status.scheduler.workers:
            self._fetched[view.status.incarnation] = view.status.kv_transfers.done

    async def _wrongs_of_disks(self) -> list[str]:
        """What is wrong with the disk tiers once they have written all."""
        folders = self._inflictor.folders()
        if len(folders) != WORKERS:
            return [f"{len(folders)} of {WORKERS} engines have a folder"]
        until_s = _CLOCK() + _WRITES_LIMIT_S
        while (found := disk.wrongs(folders, self._disk_bytes)) and _CLOCK() < until_s:
            await asyncio.sleep(0.1)
        return found

    def _plan(self) -> list[Fault]:
        return plan(
            self._settings.seed,
            self._settings.seconds,
            targets(self._stack, has_roles=self._settings.has_roles),
        )

    def _is_poisoned(self, since_s: float) -> bool:
        return self._inflictor.engines_died_since(since_s) >= 2

    async def _tell_time(self) -> None:
        while True:
            self._report.at(_CLOCK() - self._began_s)
            await asyncio.sleep(0.05)

    async def _leader(self) -> str:
        return "" if self._bus is None else await leader_of(self._bus)

    def _observe(self, event: StackEvent) -> None:
        if event.kind is EventKind.DIED:
            self._report.breach(event.process, f"died by itself: {event.detail}")
        elif event.kind in (EventKind.RESTARTED, EventKind.STOPPED):
            self._report.event(f"{event.process} {event.kind.value} {event.detail}".rstrip())


def _options(folder: Path, settings: Settings) -> StackOptions:
    has_roles = settings.has_roles
    defaults = _DEFAULTS
    if has_roles:
        defaults = _DEFAULTS_WITH_ROLES | {"INFERFLUX_KV_TRANSPORT": _transport(settings.seed)}
    return StackOptions(
        state_dir=folder,
        workers=0 if has_roles else WORKERS,
        prefill=PREFILL if has_roles else 0,
        decode=DECODE if has_roles else 0,
        schedulers=2,
        start_limit_s=_START_LIMIT_S,
        drain_limit_s=_DRAIN_LIMIT_S,
        has_disk_tier=not has_roles,
        env={variable: os.environ.get(variable, value) for variable, value in defaults.items()},
    )


def _transport(seed: int) -> str:
    return _TRANSPORTS[seed % len(_TRANSPORTS)]


@contextlib.asynccontextmanager
async def _clients(stack: Stack) -> AsyncIterator[list[Client]]:
    """One per tenant."""
    keys = [stack.api_key, *[await _make_key(stack, tenant) for tenant in TENANTS[1:]]]
    clients = [Client(stack.endpoint, key) for key in keys]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


async def _make_key(stack: Stack, tenant: str) -> str:
    address = stack.processes["policy"].spec.env["INFERFLUX_POLICY_LISTEN"]
    request = policy_pb2.CreateApiKeyRequest(
        tenant=tenant, name="chaos", scopes=["inference"], max_priority=HIGHEST
    )
    async with grpc_client.channel(address) as channel:
        policy = policy_pb2_grpc.PolicyServiceStub(channel)
        metadata = grpc_client.outgoing(api_key=stack.api_key)
        made = await policy.CreateApiKey(request, metadata=metadata)
    return str(made.secret)


async def _references(client: Client) -> dict[tuple[int, int], list[int]]:
    """The tokens of every answer, while nothing is wrong yet."""
    answers = await asyncio.gather(*(client.ask(countdown(*prompt)) for prompt in PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        if answer.text != countdown_text(*prompt):
            raise ValueError(f"the model cannot count down {prompt}: it says {answer.text!r}")
    return {prompt: answer.token_ids for prompt, answer in zip(PROMPTS, answers, strict=True)}
