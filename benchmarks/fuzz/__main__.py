"""Fuzz every RPC of gateway and policy, and every HTTP route, on a stack of its own: odd messages, metadata,
hang-ups, raw bytes.

    make fuzz                                 50,000 calls
    make fuzz SEED=7 CALLS=2000
    make fuzz ARGS="--only Chat Generate"

The same seed draws the same calls; what answers they get depends on the moment as well. Exit code 1 if a call
ended as INTERNAL or UNKNOWN, did not end, or has no audit line, or if a process ended, was started again, or
logged an error.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load.command_line import make_parser
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.common.calls.audit.files import LineReader
from inferflux.common.contract.address import split
from inferflux.v1 import model_pb2, model_pb2_grpc, policy_pb2, policy_pb2_grpc

from .caller import Fuzzer, unknown_key
from .findings import Findings
from .http import HttpFuzzer
from .methods import Method, methods
from .raw import RawFuzzer

_AT_ONCE = 24
_READY_S = 30.0
# Of ten calls one is a connection of raw bytes, and these are over HTTP: of administrators, and of clients.
_RAW, _ADMIN, _CLIENT = 0, 3, 7
_SHOWN = 10
_ERROR = re.compile(r"\[(error|critical) *\]|Traceback \(most recent call last\)")


def processes(stack: Stack) -> dict[str, tuple[int, float]]:
    """Return the processes that run, and since when, the engines and tokenizers included."""
    found = {}
    for name, managed in stack.processes.items():
        process = psutil.Process(managed.pid)
        found[name] = (process.pid, process.create_time())
        if name.startswith("worker"):
            for child in process.children():
                found[f"{name} child {child.pid}"] = (child.pid, child.create_time())
    return found


async def policy_address(stack: Stack) -> str:
    """Where policy listens."""
    return str(stack.processes["gateway"].spec.env["INFERFLUX_POLICY_ADDRESS"])


async def ordinary_key(stack: Stack, address: str) -> str:
    """A key for inference and models, which revoking at random is unlikely to hit."""
    async with grpc_client.channel(address) as channel:
        request = policy_pb2.CreateApiKeyRequest(tenant="fuzz", name="fuzz", scopes=["inference", "models"])
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        made = await stub.CreateApiKey(request, metadata=grpc_client.outgoing(api_key=stack.api_key))
    return made.secret


async def fuzz(
    stack: Stack, options: argparse.Namespace, chosen: list[Method], progress: Progress
) -> Findings:
    """All calls, some at a time."""
    address = await policy_address(stack)
    keys = (stack.api_key, await ordinary_key(stack, address), unknown_key(), "ifx_short", "")
    channels = {"gateway": grpc_client.channel(stack.endpoint), "policy": grpc_client.channel(address)}
    ports = [split(where, "address")[1] for where in (stack.endpoint, address)]
    paths = [method.path for method in chosen]
    texts = (stack.model_name, "fuzz", "tenant:fuzz", stack.api_key)
    service_key = str(stack.processes["gateway"].spec.env["INFERFLUX_SERVICE_KEY"])
    findings = Findings()
    fuzzer = Fuzzer(options.seed, channels, keys, texts, service_key, findings)
    http = HttpFuzzer(
        options.seed, split(stack.http_url.partition("://")[2], "url")[1], keys, texts, findings
    )
    raw = RawFuzzer(options.seed)
    over_http = [method for method in chosen if method.is_over_http]
    bar = progress.add_task("calls", total=options.calls)
    numbers = iter(range(options.calls))

    async def work() -> None:
        for number in numbers:
            kind, turn = number % 10, number // 10
            if kind == _RAW:
                await raw.connection(ports[turn % 2], paths)
            elif kind == _ADMIN and over_http:
                await http.call(over_http[turn % len(over_http)], f"fuzz-of-{number}")
            elif kind == _CLIENT and not options.only:
                await http.call_route(turn, f"fuzz-of-{number}")
            else:
                await fuzzer.call(chosen[number % len(chosen)], f"fuzz-of-{number}")
            progress.advance(bar)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    for channel in channels.values():
        await channel.close()
    return findings


async def load(stack: Stack) -> None:
    """Have the model loaded again, where a call of an administrator has unloaded it."""
    async with grpc_client.channel(stack.endpoint) as channel:
        request = model_pb2.LoadModelRequest(name=stack.model_name)
        metadata = grpc_client.outgoing(api_key=stack.api_key)
        await model_pb2_grpc.ModelServiceStub(channel).LoadModel(request, metadata=metadata, timeout=_READY_S)


def unloads(directory: Path) -> int:
    """How often a model was unloaded, as an administrator had asked: its engine ends then."""
    logs = directory.glob("worker*.log")
    return sum(path.read_text(errors="replace").count("a model is unloaded") for path in logs)


def audited(trail: Path) -> set[str]:
    """The request ids of all audit lines."""
    return {str(line.get("request_id")) for line in LineReader([trail]).new_lines()}


def logged_errors(directory: Path) -> list[str]:
    """Lines of the services' logs that say that something was not prepared for."""
    return [
        f"{path.name}: {line.strip()}"
        for path in sorted(directory.glob("*.log"))
        if path.stem not in ("nats", "valkey")
        for line in path.read_text(errors="replace").splitlines()
        if _ERROR.search(line)
    ]


def show(console: Console, title: str, lines: list[str]) -> None:
    console.print(f"{title}: {len(lines)}", style="red" if lines else "green")
    for line in lines[:_SHOWN]:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Everything; returns whether nothing was found."""
    chosen = [m for m in methods() if not options.only or m.path.rpartition("/")[2] in options.only]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="inferflux-fuzz-") as directory:
        async with Stack(StackOptions(state_dir=Path(directory), restarts=False)) as stack:
            before = processes(stack)
            with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
                findings = await fuzz(stack, options, chosen, progress)
            await load(stack)
            await stack.wait_ready(_READY_S)
            now = processes(stack)
        ended = [name for name, known in before.items() if now.get(name) != known]
        engines = [name for name in ended if " child " in name]
        if len(engines) <= unloads(Path(directory) / "logs"):
            ended = [name for name in ended if name not in engines]
        logged = logged_errors(Path(directory) / "logs")
        unaudited = findings.unaudited(audited(Path(directory) / "audit"))
    console.print(f"{options.calls} calls of {len(chosen)} methods, seed {options.seed}")
    for code, count in findings.codes.most_common():
        console.print(f"  {count:>7} {code}")
    console.print(f"  {options.calls - findings.codes.total():>7} connections of raw bytes")
    for title, lines in (
        ("INTERNAL", findings.internal),
        ("hangs", findings.hangs),
        ("unaudited", unaudited),
        ("processes ended", ended),
        ("errors logged", logged),
    ):
        show(console, title, lines)
    return not (findings.internal or findings.hangs or unaudited or ended or logged)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="make fuzz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=50_000)
    names = sorted({method.path.rpartition("/")[2] for method in methods()})
    parser.add_argument("--only", nargs="+", metavar="METHOD", choices=names, help=", ".join(names))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    try:
        return 0 if asyncio.run(run(options, console)) else 1
    except KeyboardInterrupt:
        return 130
    except (CommandError, OSError, TimeoutError) as error:
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
