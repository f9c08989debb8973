"""What users of NATS and TLS cost: a job and its first token over NATS, with and without, in turn.

    python benchmarks/transport_cost.py --rounds 30

Three nats-servers run side by side: every client may do everything, users with permissions, users over
mutual TLS. Each round does the same to each of them: a gateway queues a job, a scheduler takes it and
dispatches it to a worker, which publishes a token that the gateway reads. Shown are medians, and the ratio to
the first server as the median over the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser
from inferflux.cli.stack.cert_files import ca_file, files_of
from inferflux.cli.stack.certificates import write_certificates
from inferflux.common.bus import Bus, JobConsumer, Message, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.process.private_files import write_private
from inferflux.common.process.tls import TlsFiles
from inferflux.common.servers import nats_users
from inferflux.common.servers.servers import LOOPBACK, ServerProcess, free_port, nats_command

_WORKER = "worker-0"
_PASSWORD = secrets.token_urlsafe(8)
_USERS = [nats_users.gateway(), nats_users.scheduler(), nats_users.worker(_WORKER)]
_REQUESTS = 40
_TENANT = "default"
_CHUNK = b"x" * 60


@dataclass(frozen=True)
class _Way:
    """The three ends of one server."""

    name: str
    gateway: Bus
    scheduler: Bus
    jobs: JobConsumer

    async def request(self) -> float:
        """Seconds from before a job is queued to its first token."""
        request_id = secrets.token_hex(8)
        tokens = await self.gateway.open_stream(subjects.tokens(_TENANT, request_id))
        began = time.perf_counter()
        await self.gateway.enqueue(subjects.jobs("bench"), request_id.encode(), msg_id=request_id)
        job = await anext(self.jobs)
        await self.scheduler.request(subjects.worker_batch(_WORKER), job.data, timeout_s=5)
        await tokens.next(5)
        took_s = time.perf_counter() - began
        tokens.close()
        await job.ack()
        return took_s


@contextlib.asynccontextmanager
async def _way(name: str, parent: str, *, has_users: bool, has_tls: bool) -> AsyncIterator[_Way]:
    directory = Path(tempfile.mkdtemp(dir=parent))
    port = free_port()
    users_file = directory / "users.conf"
    write_private(users_file, nats_users.users_config(_USERS, {user.name: _PASSWORD for user in _USERS}))
    certificates = directory / "tls"
    write_certificates(certificates)
    ca = ca_file(certificates)
    command = nats_command(
        port,
        directory / "nats",
        users_file=users_file if has_users else None,
        tls=TlsFiles(*files_of(certificates, "nats"), ca) if has_tls else None,
    )
    server = ServerProcess(command, port=port, name="nats-server")
    server.start()
    scheme = "tls" if has_tls else "nats"
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(server.stop)
        server.wait_ready()

        async def connect(user: str) -> Bus:
            credentials = f"{user}:{_PASSWORD}@" if has_users else ""
            tls = TlsFiles(*files_of(certificates, "client"), ca)
            bus = await Bus.connect(f"{scheme}://{credentials}{LOOPBACK}:{port}", name=user, tls=tls)
            stack.push_async_callback(bus.close)
            return bus

        scheduler = await connect(nats_users.SCHEDULER)
        await scheduler.ensure_streams(StreamLimits())
        gateway, worker = await connect(nats_users.GATEWAY), await connect(_WORKER)

        async def on_batch(message: Message) -> None:
            await message.respond(b"")
            await worker.publish(subjects.tokens(_TENANT, message.data.decode()), _CHUNK)

        await worker.serve(subjects.worker_batch(_WORKER), on_batch)
        await worker.flush()
        yield _Way(name, gateway, scheduler, await scheduler.consume_jobs(max_outstanding=64))


async def main(rounds: int) -> None:
    kinds = {"open": (False, False), "users": (True, False), "users, mutual TLS": (True, True)}
    async with contextlib.AsyncExitStack() as stack:
        parent = stack.enter_context(tempfile.TemporaryDirectory())
        ways = [
            await stack.enter_async_context(_way(name, parent, has_users=has_users, has_tls=has_tls))
            for name, (has_users, has_tls) in kinds.items()
        ]
        medians: dict[str, list[float]] = {way.name: [] for way in ways}
        for _ in range(rounds + 1):
            for way in ways:
                medians[way.name].append(statistics.median([await way.request() for _ in range(_REQUESTS)]))
    table = Table("nats-server", "job to first token, ms", "ratio to open")
    first = medians[ways[0].name][1:]
    for name, found in medians.items():
        ratio = statistics.median(mine / its for mine, its in zip(found[1:], first, strict=True))
        table.add_row(name, f"{statistics.median(found[1:]) * 1e3:.2f}", f"{ratio:.3f}")
    Console().print(table)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(parser.parse_args().rounds))
