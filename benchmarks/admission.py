"""What policy adds to a request, and how many it admits.

    python -m benchmarks.admission [--requests 2000] [--seconds 10] [--callers 50] [--json FILE]

One policy process over one valkey-server, with limits of the key, the tenant and the model that are never
reached. First one request after another: Admit, Reserve and Settle as a gateway calls them, with the time of
each and of all three. Then callers that ask for Admit without a pause, each again as soon as it is answered.
`--no-limits` measures both without any limits.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc.aio
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.table import Table

from inferflux.common.calls import grpc_client
from inferflux.common.calls.calls import CallContext
from inferflux.common.servers.servers import LOOPBACK, ServerProcess, free_port
from inferflux.gateway.policy.admission import Admission
from inferflux.v1 import generation_pb2, policy_pb2, policy_pb2_grpc

from .command_line import add_json, make_parser, positive, write_json
from .stats import percentile

_WARM_UP = 200
_START_LIMIT_S = 30.0
_MODEL, _TENANT = "demo", "measured"
_PROMPT, _MOST, _USED = 100, 200, 50
# Never reached: what is measured is the counting.
_LIMIT = 10**11
_STEPS = ("Admit", "Reserve", "Settle")


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one call, or of all, in ms."""

    name: str
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured."""

    has_limits: bool
    requests: int
    latencies: list[Latency]
    callers: int
    admits_per_s: float
    admit_p99_ms: float


@asynccontextmanager
async def policy_on_valkey(*, service_key: str, admin_key: str) -> AsyncIterator[str]:
    """The address of a policy process over a valkey-server, once it is ready."""
    with tempfile.TemporaryDirectory(prefix="inferflux-admission-") as directory:
        valkey = ServerProcess.valkey(Path(directory) / "valkey")
        valkey.start()
        try:
            async with policy_process(valkey.url, service_key=service_key, admin_key=admin_key) as address:
                yield address
        finally:
            valkey.stop()


@asynccontextmanager
async def policy_process(redis_url: str, *, service_key: str, admin_key: str) -> AsyncIterator[str]:
    """Its address, once it is ready."""
    address = f"{LOOPBACK}:{free_port()}"
    environment = {
        "INFERFLUX_POLICY_LISTEN": address,
        "INFERFLUX_REDIS_URL": redis_url,
        "INFERFLUX_SERVICE_KEY": service_key,
        "INFERFLUX_POLICY_BOOTSTRAP_KEY": admin_key,
        "INFERFLUX_EXIT_WITH_PARENT": "true",
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("INFERFLUX_")}
    command = (sys.executable, "-m", "inferflux.policy")
    process = await asyncio.create_subprocess_exec(
        *command,
        env=inherited | environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _until_serving(address)
        yield address
    finally:
        process.kill()
        await process.wait()


async def _until_serving(address: str) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    async with grpc_client.channel(address) as channel, asyncio.timeout(_START_LIMIT_S):
        health = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
                continue
            if answer.status == serving:
                return
            await asyncio.sleep(0.05)


class Measured:
    """A gateway's side of policy, and a key with limits."""

    def __init__(self, channel: grpc.aio.Channel, admission: Admission, admin_key: str) -> None:
        self._policy = policy_pb2_grpc.PolicyServiceStub(channel)
        self._admission = admission
        self._admin = grpc_client.outgoing(api_key=admin_key)
        self._secret = self._key_id = ""

    async def prepare(self, *, has_limits: bool) -> None:
        request = policy_pb2.CreateApiKeyRequest(tenant=_TENANT, name="measured", scopes=["inference"])
        made = await self._policy.CreateApiKey(request, metadata=self._admin)
        self._secret, self._key_id = made.secret, made.api_key.key_id
        subjects = (f"key:{self._key_id}", f"tenant:{_TENANT}", f"model:{_MODEL}") if has_limits else ()
        for subject in subjects:
            limits = policy_pb2.RateLimit(
                subject=subject,
                requests_per_minute=_LIMIT,
                tokens_per_minute=_LIMIT,
                tokens_per_day=_LIMIT,
                concurrent_requests=_LIMIT,
            )
            await self._policy.SetRateLimit(
                policy_pb2.SetRateLimitRequest(rate_limit=limits), metadata=self._admin
            )

    async def admit(self, number: int) -> None:
        context = CallContext(f"r{number}", credential=self._secret, is_counted=True)
        await self._admission.admit("inference", context)

    async def reserve(self, number: int) -> None:
        await self._admission.reserve(
            policy_pb2.ReserveRequest(
                request_id=f"r{number}",
                attempt_id="a",
                tenant=_TENANT,
                key_id=self._key_id,
                model=_MODEL,
                prompt_tokens=_PROMPT,
                max_tokens=_MOST,
            )
        )

    async def settle(self, number: int) -> None:
        await self._admission.settle(
            policy_pb2.SettleRequest(
                request_id=f"r{number}",
                attempt_id="a",
                tenant=_TENANT,
                key_id=self._key_id,
                model=_MODEL,
                outcome="stop",
                usage=generation_pb2.Usage(prompt_tokens=_PROMPT, completion_tokens=_USED),
            )
        )


async def one_after_another(measured: Measured, requests: int) -> list[Latency]:
    """The time of each call, and of a request's three calls together."""
    steps: tuple[Callable[[int], Awaitable[None]], ...] = (measured.admit, measured.reserve, measured.settle)
    times_s: list[list[float]] = []
    for number in range(requests + _WARM_UP):
        at = [time.perf_counter()]
        for step in steps:
            await step(number)
            at.append(time.perf_counter())
        times_s.append([after - before for before, after in itertools.pairwise(at)])
    rows = times_s[_WARM_UP:]
    found = [_latency(name, [row[i] for row in rows]) for i, name in enumerate(_STEPS)]
    return [*found, _latency("all three", [sum(row) for row in rows])]


async def all_at_once(measured: Measured, *, callers: int, seconds: float) -> tuple[float, Latency]:
    """Admit calls per second, and the time of one."""
    end = time.perf_counter() + seconds
    times_s: list[float] = []

    async def call_on(caller: int) -> None:
        number = 0
        while (began := time.perf_counter()) < end:
            await measured.admit(caller * 10**6 + number)
            times_s.append(time.perf_counter() - began)
            number += 1

    began = time.perf_counter()
    await asyncio.gather(*(call_on(caller) for caller in range(callers)))
    return len(times_s) / (time.perf_counter() - began), _latency("Admit", times_s)


def _latency(name: str, times_s: list[float]) -> Latency:
    ordered = sorted(times_s)
    return Latency(name, percentile(ordered, 0.5) * 1000, percentile(ordered, 0.99) * 1000)


async def measure(options: argparse.Namespace) -> Figures:
    service_key = secrets.token_urlsafe(32)
    admin_key = f"ifx_{secrets.token_urlsafe(32)}"
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(
            policy_on_valkey(service_key=service_key, admin_key=admin_key)
        )
        channel = await stack.enter_async_context(grpc_client.channel(address))
        admission = Admission(channel, service_key=service_key, timeout_s=10.0)
        measured = Measured(channel, admission, admin_key)
        await measured.prepare(has_limits=not options.no_limits)
        latencies = await one_after_another(measured, options.requests)
        per_s, admit = await all_at_once(measured, callers=options.callers, seconds=options.seconds)
        return Figures(
            has_limits=not options.no_limits,
            requests=options.requests,
            latencies=latencies,
            callers=options.callers,
            admits_per_s=per_s,
            admit_p99_ms=admit.p99_ms,
        )


def show(figures: Figures) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("one request after another", "p50", "p99"):
        table.add_column(heading, justify="left" if heading[0] == "o" else "right")
    for latency in figures.latencies:
        table.add_row(latency.name, f"{latency.p50_ms:.2f} ms", f"{latency.p99_ms:.2f} ms")
    return table


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=positive, default=2000, help="one after another")
    parser.add_argument("--seconds", type=float, default=10.0, help="of callers that ask all the time")
    parser.add_argument("--callers", type=positive, default=50, help="how many of them")
    parser.add_argument("--no-limits", action="store_true", help="measure without limits")
    add_json(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Run from the command line; returns the exit code."""
    options = parse()
    figures = uvloop.run(measure(options))
    console = Console()
    console.print(show(figures))
    rate = f"{figures.admits_per_s:,.0f} Admit calls per second"
    console.print(f"\n{figures.callers} callers: {rate}, p99 {figures.admit_p99_ms:.1f} ms")
    write_json(options, asdict(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
