"""A fleet, and one case after the other on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos import aftermath
from chaos.report import Report

from inferflux.cli.reach.client import Client as AdminClient
from inferflux.common.calls import grpc_client
from inferflux.common.contract.requests.priority import HIGHEST
from inferflux.common.process import logs
from inferflux.common.servers import nats_users
from inferflux.v1 import policy_pb2, policy_pb2_grpc

from . import checks
from .asks import Asked, asks, countdowns
from .cases import Case
from .errors import FleetError
from .faults import Fault, inflict
from .history import History
from .layout import GATEWAYS, SLOTS, WORKERS
from .load import Load
from .machines import Fleet
from .watching import Watch
from .wire import Quality

TENANT = "fleet"
_BEFORE_S, _AFTER_S = 1.0, 3.0
_ACCEPTING_S = 1.0
# What requests get to end after the last one began.
_LAST_LIMIT_S = 90.0
_FREE_LIMIT_S = 30.0
# Gateways send settlements again after 0.2, 1, 5, 10 and then 30 s.
_SETTLED_LIMIT_S = 50.0
_POLL_S = 0.2


@dataclass(slots=True)
class Result:
    """What a case gave.

    Attributes:
        refused: requests that ended UNAVAILABLE before anything of them came, where that may be.
        late: requests that their deadline ended.
        came_back: streams that failed and were resumed by hand.
        longest_gap_s: between two tokens of a stream, from the first fault on.
        longest_wait_s: of a request for its first token, from then on.
        open: streams at each gateway when the first fault began.
        frames: of the switch meanwhile.
    """

    case: str
    requests: int = 0
    whole: int = 0
    cancelled: int = 0
    left: int = 0
    failed: int = 0
    refused: int = 0
    late: int = 0
    resumed: int = 0
    came_back: int = 0
    moved: int = 0
    tokens: int = 0
    longest_gap_s: float = 0.0
    longest_wait_s: float = 0.0
    seconds: float = 0.0
    open: dict[str, int] = field(default_factory=dict)
    frames: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """For people."""
        facts = [
            f"{self.requests} requests: {self.whole} whole",
            *(
                f"{count} {what}"
                for what, count in (
                    ("cancelled", self.cancelled),
                    ("left", self.left),
                    ("failed", self.failed),
                    ("refused", self.refused),
                    ("past their deadline", self.late),
                    ("resumed", self.resumed),
                    ("came back", self.came_back),
                    ("moved", self.moved),
                )
                if count
            ),
            f"{' and '.join(map(str, self.open.values()))} streams were open",
            f"longest gap {self.longest_gap_s:.1f} s",
            f"longest wait {self.longest_wait_s:.1f} s",
            f"{self.seconds:.0f} s",
            f"{len(self.breaches)} breaches" if self.breaches else "no breach",
        ]
        return f"{self.case}: {', '.join(facts)}"


class Run:
    """Cases on one fleet.

    Args:
        folder: where all is kept; a folder for the histories of cases that breach something.
    """

    def __init__(self, fleet: Fleet, folder: Path, report: Report, seed: int) -> None:
        self._fleet = fleet
        self._folder = folder
        self._report = report
        self._seed = seed
        self._key = ""
        self._read_to: dict[Path, int] = {}
        self._clocks: dict[str, float] = {}
        self.results: list[Result] = []

    async def run(self, cases: Sequence[Case]) -> None:
        self._key = await self._make_key()
        for case in cases:
            async with Watch(self._fleet, TENANT) as watch:
                await self._case(case, watch)

    async def _case(self, case: Case, watch: Watch) -> None:
        result = Result(case.name, faults=[str(fault) for fault in case.faults])
        self.results.append(result)
        first = len(self._report.breaches)
        began_s = time.monotonic()
        frames = self._fleet.network.counts()
        history = watch.begin()
        await self._set_clocks(dict(case.clocks))
        history.counted_before = await watch.usage() or {}
        self._report.event(f"case {case.name} begins")
        if not case.quality.is_perfect:
            self._fleet.network.set_quality(case.quality)
        try:
            fault_s = await self._load(case, watch, result)
        finally:
            if not case.quality.is_perfect:
                self._fleet.network.set_quality(Quality())
        # What was asked a moment before may not have been accepted yet.
        may_refuse_s = fault_s - _ACCEPTING_S if case.may_refuse else None
        await self._judge(watch, history, may_refuse_s, has_state=case.wants.is_countdown)
        result.breaches = [str(breach) for breach in self._report.breaches[first:]]
        result.seconds = time.monotonic() - began_s
        after = self._fleet.network.counts()
        result.frames = {what: after[what] - frames[what] for what in after}
        _fill(result, history, fault_s, may_refuse=case.may_refuse)
        name = case.name.replace(":", "-")
        history.write(self._folder / f"history-{len(self.results)}-{name}.jsonl")
        self._report.event(result.line)
        print(result.line, flush=True)

    async def _load(self, case: Case, watch: Watch, result: Result) -> float:
        """Load and faults; returns when the first fault began."""
        history = watch.history

        def expect(ask: Asked) -> None:
            watch.expected[ask.request_id] = ask.token_ids

        vocabulary = self._fleet.model.vocabulary_size
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in case.name)[:40]
        number = len(self.results)
        streams: list[Iterator[Asked]] = [
            countdowns(f"{name}-{number}", self._seed, stream)
            if case.wants.is_countdown
            else asks(f"{name}-{number}", self._seed, stream, case.wants, vocabulary)
            for stream in range(case.streams)
        ]
        model = self._fleet.model.name
        async with Load(
            self._fleet.endpoints,
            self._key,
            model,
            streams,
            history,
            expect=expect,
            slots=len(WORKERS) * int(self._fleet.env[SLOTS]),
            retries=case.retries,
            comes_back=case.comes_back,
        ) as load:
            await load.until_open()
            await asyncio.sleep(_BEFORE_S)
            result.open = {name: await self._fleet.open_streams(name) for name in GATEWAYS}
            fault_s = time.monotonic()
            await self._follow(case.faults, watch, fault_s)
            await asyncio.sleep(max(_AFTER_S, fault_s + case.seconds - time.monotonic()))
            await load.finish(_LAST_LIMIT_S)
        return fault_s

    async def _follow(self, faults: Sequence[Fault], watch: Watch, began_s: float) -> None:
        async def one(fault: Fault) -> None:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
            self._report.event(str(fault))
            try:
                await inflict(fault, self._fleet, watch)
            except FleetError as error:
                self._report.breach(str(fault), str(error))

        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(one(fault))

    async def _judge(
        self, watch: Watch, history: History, may_refuse_s: float | None, *, has_state: bool
    ) -> None:
        try:
            await self._fleet.until_whole()
        except FleetError as error:
            self._report.breach("afterwards", str(error))
        async with AdminClient(self._fleet.target) as client:
            url = self._fleet.layout.nats_url(nats_users.OPERATOR)
            held = await aftermath.until_free(
                client, url, workers=len(WORKERS), limit_s=_FREE_LIMIT_S, clock=time.monotonic
            )
            views = (await client.status()).scheduler.workers
        for what in held:
            self._report.breach("afterwards", f"{what}, {_FREE_LIMIT_S:g} s after everything")
        fetched = sum(view.status.kv_transfers.done for view in views)
        if has_state and not fetched:
            self._report.breach("the case", "no KV state has come from another worker")
        self._report.event(f"workers have fetched KV state {fetched} times since they began")
        await self._until_settled(watch, history)
        found = [
            *checks.streams(history.served, may_refuse_s=may_refuse_s),
            *checks.once(history.served),
            *checks.terms(history.dispatches),
            *checks.settlements(history),
            *(
                (request_id, wrong)
                for request_id, all_of in watch.published.wrongs().items()
                for wrong in all_of
            ),
            *((process.name, "died by itself") for process in self._fleet.died()),
            *self._tracebacks(),
        ]
        for about, what in found:
            self._report.breach(about, what)
        for served in history.served:
            self._report.tally.add(served.transcript)

    async def _until_settled(self, watch: Watch, history: History) -> None:
        """Until all is counted, or what is missing comes no more."""
        until_s = time.monotonic() + _SETTLED_LIMIT_S
        while time.monotonic() < until_s:
            if (usage := await watch.usage()) is not None:
                history.counted_after = usage
                is_enough = checks.is_settled(history) or (
                    history.losses_s and not checks.settlements(history)
                )
                if is_enough:
                    return
            await asyncio.sleep(_POLL_S)

    def _tracebacks(self) -> list[tuple[str, str]]:
        """Unexpected errors in what was logged since the last case."""
        found = []
        for processes in self._fleet.processes.values():
            for process in processes:
                with process.log_file.open("rb") as file:
                    file.seek(self._read_to.get(process.log_file, 0))
                    text = file.read()
                    self._read_to[process.log_file] = file.tell()
                found += [
                    (process.name, f"logged an unexpected error: {error}")
                    for error in aftermath.tracebacks(text.decode(errors="replace"))
                ]
        return found

    async def _set_clocks(self, clocks: dict[str, float]) -> None:
        """Start hosts again whose clocks are to be others."""
        changed = [host for host in {*clocks, *self._clocks} if clocks.get(host) != self._clocks.get(host)]
        if not changed:
            return
        self._fleet.clocks = self._clocks = clocks
        for host in changed:
            await self._fleet.kill(host)
        await asyncio.gather(*(self._fleet.start(host) for host in changed))
        await self._fleet.until_whole()
        self._report.event(f"clocks: {clocks}")

    async def _make_key(self) -> str:
        """Of a tenant of its own, whose usage is that of the load alone."""
        address = self._fleet.network.hosts[GATEWAYS[0]].address
        request = policy_pb2.CreateApiKeyRequest(
            tenant=TENANT, name="fleet", scopes=["inference"], max_priority=HIGHEST
        )
        async with grpc_client.channel(f"{address}:50052") as channel:
            policy = policy_pb2_grpc.PolicyServiceStub(channel)
            metadata = grpc_client.outgoing(api_key=self._fleet.layout.secrets.api_key)
            made = await policy.CreateApiKey(request, metadata=metadata)
        return str(made.secret)


def _fill(result: Result, history: History, fault_s: float, *, may_refuse: bool) -> None:
    served = history.served
    result.requests = len(served)
    result.tokens = sum(each.transcript.offset for each in served)
    result.whole = sum(each.is_whole for each in served)
    result.cancelled = sum(each.transcript.is_cancelled for each in served)
    result.left = sum(each.transcript.has_left for each in served)
    result.late = sum(each.is_late and not each.ask.is_due for each in served)
    result.refused = sum(each.is_refused and may_refuse for each in served)
    failures = sum(bool(each.transcript.failure) for each in served)
    result.failed = failures - result.refused - result.late
    result.resumed = sum(each.transcript.resumes > 0 for each in served)
    result.came_back = sum(each.came_back for each in served)
    result.moved = sum(len(each.transcript.epochs) > 1 for each in served)
    result.longest_gap_s = checks.longest_gap_s(served, fault_s)
    result.longest_wait_s = checks.longest_wait_s(served, fault_s)


async def run(
    cases: Sequence[Case],
    *,
    seed: int,
    env: Mapping[str, str],
    limit_s: float,
    keeps: bool,
    is_verbose: bool,
    output: Path | None,
) -> int:
    """Start a fleet, run the cases, print what they gave; returns the exit status, 1 for any breach.

    Args:
        env: of every service.
        limit_s: after which it gives up.
    """
    logs.configure("fleet", "error")
    folder = Path(tempfile.mkdtemp(prefix=f"inferflux-fleet-{seed}-"))
    report = Report(folder, is_verbose=is_verbose)
    began_s = time.monotonic()
    clock = asyncio.create_task(_tell_time(report, began_s))
    results: list[Result] = []
    try:
        async with asyncio.timeout(limit_s), Fleet(folder, seed, env=env, say=report.event) as fleet:
            report.event(f"the fleet is up after {time.monotonic() - began_s:.1f} s")
            running = Run(fleet, folder, report, seed)
            results = running.results
            await running.run(cases)
    except (FleetError, OSError) as error:
        # Where time was up, the last word says what it was up for.
        report.breach(
            "the fleet", f"{str(error) or type(error).__name__}; the last that happened: {report.last}"
        )
    finally:
        clock.cancel()
    if output is not None:
        output.write_text(json.dumps([asdict(result) for result in results], indent=1))
    keeps = keeps or bool(report.breaches)
    n_breaches = len(report.breaches)
    verdict = f"{n_breaches} BREACHES" if n_breaches != 1 else "1 BREACH"
    line = f"fleet: seed {seed}, {len(results)} cases: {verdict if n_breaches else 'no breach'}"
    report.close(line, folder if keeps else None)
    if not keeps:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.breaches else 0


async def _tell_time(report: Report, began_s: float) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            report.at(time.monotonic() - began_s)
            await asyncio.sleep(0.05)
