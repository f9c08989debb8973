"""`inferctl doctor` on set-ups that are broken for real, several faults in each, and on a healthy one.

`FAULTS` lists them: the set-up, the check, how bad it is, what is said of it, and what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from harness.certificates import Certificates
from harness.inferctl import environment
from harness.redis_cluster import ClusterServers
from harness.redis_sentinel import SentinelServers
from harness.servers import ServerProcess
from harness.worker import DEMO_MODEL

from inferflux.cli.doctor.facts import redis as redis_facts
from inferflux.cli.doctor.seen import Failure
from inferflux.cli.stack.servers import free_port
from inferflux.common.bus import Bus
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.common.process.tls import TlsFiles
from inferflux.common.servers import nats_users, redis_users
from inferflux.worker.engine.tiers.claims import claimed
from inferflux.worker.host import model_setup
from inferflux.worker.settings import WorkerSettings

SECRETS = ("pa55word-of-nats", "pa55word-of-redis", "pa55word-of-proxy", "ifx_secret-key-of-a-client")
LIMIT_S = 240.0
CERT, KEY = "INFERFLUX_TLS_CERT", "INFERFLUX_TLS_KEY"


@dataclass(frozen=True)
class Fault:
    """A fault of a set-up: regular expressions of what is said, and of the remedy."""

    setup: str
    check: str
    level: str
    said: str
    remedy: str


FAULTS = [
    # nothing runs
    Fault("dark", "nats", "problem", r"port \d+ is closed", r"start nats-server on 127\.0\.0\.1"),
    Fault("dark", "redis", "problem", r"port \d+ is closed", r"start valkey-server on 127\.0\.0\.1"),
    Fault("dark", "settings", "warning", r"INFERFLUX_GATEWAY_LISTN: no", r"is INFERFLUX_GATEWAY_LISTEN"),
    Fault("dark", "settings", "warning", r"INFERFLUX_NONSENSE: no service", r"leave it out"),
    Fault("dark", "settings", "problem", r"INFERFLUX_WORKER_SLOTS: .*'many'", r"change the value"),
    Fault("dark", "settings", "problem", r"INFERFLUX_SCHEDULER_AGING_S is gone", r"leave the variable out"),
    Fault("dark", "ports", "problem", r"gateway, gRPC: .* taken by python", r"INFERFLUX_GATEWAY_LISTEN"),
    Fault("dark", "ports", "problem", r"203.0.113.1:\d+ is no address", r"INFERFLUX_POLICY_LISTEN"),
    Fault("dark", "certificates", "problem", r"INFERFLUX_TLS_CERT: .*No such file", r"name a PEM file"),
    Fault("dark", "disk", "problem", r"DISK_PATH: /proc/kv: .*cannot write", r"give .* a folder"),
    Fault("dark", "memory", "problem", r"no-model.gguf: ", r"name a GGUF file"),
    Fault("dark", "files", "problem", r"may have 200 files open", r"ulimit -n 4096.*LimitNOFILE=4096"),
    Fault("dark", "proxies", "warning", r"NO_PROXY lacks 127\.0\.0\.1", r"NO_PROXY=example\.org,127\."),
    Fault("dark", "proxies", "warning", r"grpc_proxy is set", r"unset grpc_proxy"),
    # servers of other kinds
    Fault("foreign", "nats", "problem", r"has JetStream off", r"-js"),
    Fault("foreign", "nats", "problem", r"is no nats-server", r"name the port of nats-server"),
    Fault("foreign", "nats", "problem", r"does not answer in time", r"log"),
    Fault("foreign", "redis", "problem", r"is a read-only replica", r"name the primary"),
    Fault("foreign", "certificates", "problem", r"expired on 20", r"inferctl admin certs"),
    Fault("foreign", "certificates", "problem", r"INFERFLUX_TLS_CA: .*not PEM", r"name a PEM file"),
    Fault("foreign", "memory", "warning", r"host tier", r"INFERFLUX_WORKER_HOST_BYTES: at most"),
    Fault("foreign", "shm", "warning", r"INFERFLUX_WORKER_SHM_BYTES allows", r"remount,size"),
    Fault("foreign", "versions", "problem", r"inferflux-gateway 0\.0\.1", r"of one version"),
    # servers that do not take the users
    Fault("refusing", "nats", "problem", r"refuses the user or the password", r"take both from"),
    Fault("refusing", "redis", "problem", r"refuses the user or the password", r"take both from"),
    Fault("refusing", "llama.cpp", "problem", r"another CPU", r"-DGGML_NATIVE=on"),
    Fault("refusing", "certificates", "problem", r"key of another certificate", r"made with the certificate"),
    Fault("refusing", "memory", "problem", r"demo.gguf takes .* are the limit", r"INFERFLUX_WORKER_SLOTS"),
    # servers that lose things
    Fault("leaky", "nats", "problem", r"streams are missing: INFERFLUX_JOBS", r"start inferflux\.scheduler"),
    Fault("leaky", "nats", "warning", r"takes messages of 2,097,152 bytes", r"max_payload: 8388608"),
    Fault("leaky", "redis", "problem", r"allkeys-lru.*API keys", r"maxmemory-policy noeviction"),
    Fault("leaky", "clock", "problem", r"behind that of Redis", r"NTP"),
    Fault("leaky", "certificates", "warning", r"expires in 2 days", r"inferctl admin certs"),
    Fault("leaky", "certificates", "problem", r"clients call llm\.example\.org", r"--host llm\.example\.org"),
    Fault("leaky", "disk", "warning", r"its setting allows .* are there", r"lower the setting"),
    Fault("leaky", "shm", "warning", r"dead workers left .* in /dev/shm/ifx_kv_", r"takes it over"),
]  # fmt: skip


class Relay(socketserver.ThreadingTCPServer):
    """A TCP server in a thread of its own. It says something at once, and nothing more; or it passes all on
    to a valkey-server, whose clock is ten minutes ahead then. Use as a context manager."""

    daemon_threads = True

    def __init__(self, *, says: bytes = b"", to: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Relayed)
        self.says, self.to = says, to
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Relayed(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        self.request.sendall(self.server.says)
        if not self.server.to:
            while self.request.recv(65536):
                pass
            return
        with socket.create_connection(("127.0.0.1", self.server.to)) as onward:
            back = threading.Thread(target=self._pass, args=(onward, self.request))
            back.start()
            self._pass(self.request, onward)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(re.sub(rb"(\*2\r\n\$10\r\n)(\d{10})\r\n", self._later, data))
            target.shutdown(socket.SHUT_WR)

    @staticmethod
    def _later(found: re.Match[bytes]) -> bytes:
        return found[1] + str(int(found[2]) + 600).encode() + b"\r\n"


def changed(directory: Path, server: ServerProcess, *lines: str, without: str = "") -> ServerProcess:
    """A server that is not started yet, with more in its configuration, and less."""
    config = next(directory.glob("*.conf"))
    kept = re.sub(without, "", config.read_text(), flags=re.DOTALL) if without else config.read_text()
    config.write_text("\n".join([kept, *lines, ""]))
    return server


def including(users: Path, directory: Path) -> str:
    """The line of a nats-server's configuration that reads users from a file."""
    return f'include "{os.path.relpath(users, directory)}"'


@contextlib.contextmanager
def running(*servers: ServerProcess) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.kill()


def doctor(folder: Path, variables: Mapping[str, object], *arguments: str, **env: str) -> Seen:
    """Run it for an environment in a file."""
    file = folder / "services.env"
    file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    max_files = env.pop("max_files", "4096")
    command = [sys.executable, "-m", "inferflux.cli", "doctor", "--json", "--env-file", str(file), *arguments]
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh", *command],
        env=environment({"INFERFLUX_STATE_DIR": str(folder / "state"), **env}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert not done.stderr, done.stderr
    return Seen(done.returncode, json.loads(done.stdout), done.stdout)


@dataclass(frozen=True)
class Seen:
    """What it found, and its exit status."""

    status: int
    findings: list[dict[str, str]]
    output: str

    def levels(self, check: str) -> set[str]:
        return {one["level"] for one in self.findings if one["check"] == check}


def dark(folder: Path) -> Seen:
    """Nothing runs, and the environment has slips."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        variables = {
            "INFERFLUX_NATS_URL": f"nats://gateway:{SECRETS[0]}@127.0.0.1:{free_port()}",
            "INFERFLUX_REDIS_URL": f"redis://gateway:{SECRETS[1]}@127.0.0.1:{free_port()}/0",
            "INFERFLUX_API_KEY": SECRETS[3],
            "INFERFLUX_GATEWAY_LISTN": "127.0.0.1:1",
            "INFERFLUX_NONSENSE": "1",
            "INFERFLUX_WORKER_SLOTS": "many",
            "INFERFLUX_SCHEDULER_AGING_S": "3",
            "INFERFLUX_GATEWAY_LISTEN": f"127.0.0.1:{other.getsockname()[1]}",
            "INFERFLUX_POLICY_LISTEN": "203.0.113.1:50052",
            CERT: folder / "gone.pem",
            KEY: folder / "gone.key",
            "INFERFLUX_WORKER_DISK_PATH": "/proc/kv",
            "INFERFLUX_WORKER_MODEL_PATH": folder / "no-model.gguf",
        }
        proxy = f"http://user:{SECRETS[2]}@proxy.example.org:3128"
        return doctor(
            folder, variables, http_proxy=proxy, grpc_proxy=proxy, no_proxy="example.org", max_files="200"
        )


def foreign(folder: Path) -> Seen:
    """Servers that are there, and are not what is needed; packages of another version."""
    plain = changed(folder / "nats", ServerProcess.nats(folder / "nats"), without=r"jetstream \{.*?\n\}")
    primary = ServerProcess.valkey(folder / "primary")
    replica = changed(
        folder / "replica", ServerProcess.valkey(folder / "replica"), f"replicaof 127.0.0.1 {primary.port}"
    )
    old = folder / "site" / "inferflux_gateway-0.0.1.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: inferflux-gateway\nVersion: 0.0.1\n")
    Certificates.made(folder / "tls", days=0)
    (folder / "ca.pem").write_text("no certificate")
    greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with running(plain, primary, replica), Relay(says=greeting) as web, Relay() as silent:
        urls = [plain.url, *(f"nats://127.0.0.1:{relay.port}" for relay in (web, silent))]
        return doctor(
            folder,
            {
                "INFERFLUX_NATS_URL": ",".join(urls),
                "INFERFLUX_REDIS_URL": replica.url,
                CERT: folder / "tls" / "gateway.pem",
                KEY: folder / "tls" / "gateway.key",
                "INFERFLUX_TLS_CA": folder / "ca.pem",
                "INFERFLUX_WORKER_MODEL_PATH": DEMO_MODEL,
                "INFERFLUX_WORKER_HOST_BYTES": 1 << 50,
                "INFERFLUX_WORKER_SHM_BYTES": 1 << 50,
            },
            PYTHONPATH=str(folder / "site"),
        )


def refusing(folder: Path) -> Seen:
    """Servers with users, none of them ours; a llama.cpp of another CPU, a key of another certificate."""
    users = folder / "users.conf"
    users.write_text(nats_users.users_config([nats_users.gateway()], {"gateway": "another-password"}))
    nats = changed(
        folder / "nats",
        ServerProcess.nats(folder / "nats"),
        including(users, folder / "nats"),
    )
    lines = redis_users.acl(dict.fromkeys(redis_users.USERS, "another-password"))
    valkey = changed(folder / "valkey", ServerProcess.valkey(folder / "valkey"), *lines)
    package = folder / "site" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "llama_cpp.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    Certificates.made(folder / "tls", days=90)
    with running(nats, valkey):
        return doctor(
            folder,
            {
                "INFERFLUX_NATS_URL": f"nats://gateway:{SECRETS[0]}@127.0.0.1:{nats.port}",
                "INFERFLUX_REDIS_URL": f"redis://gateway:{SECRETS[1]}@127.0.0.1:{valkey.port}/0",
                CERT: folder / "tls" / "gateway.pem",
                KEY: folder / "tls" / "policy.key",
                "INFERFLUX_WORKER_MODEL_PATH": DEMO_MODEL,
                "INFERFLUX_WORKER_KV_CELLS": 2**31 - 1,
            },
            PYTHONPATH=str(folder / "site"),
        )


def leaky(folder: Path) -> Seen:
    """Servers that take the users and lose what they are given; what is about to end."""
    nats = changed(
        folder / "nats",
        ServerProcess.nats(folder / "nats"),
        "max_payload: 2097152",
        without=r"max_payload: \d+",
    )
    valkey = changed(
        folder / "valkey",
        ServerProcess.valkey(folder / "valkey"),
        "maxmemory 100mb",
        "maxmemory-policy allkeys-lru",
    )
    Certificates.made(folder / "tls", days=3)
    with running(nats, valkey), left_by_a_dead_worker(), Relay(to=valkey.port) as relay:
        return doctor(
            folder,
            {
                "INFERFLUX_NATS_URL": nats.url,
                "INFERFLUX_REDIS_URL": f"redis://127.0.0.1:{relay.port}/0",
                CERT: folder / "tls" / "gateway.pem",
                KEY: folder / "tls" / "gateway.key",
                "INFERFLUX_MODELS_STORE": folder / "store",
                "INFERFLUX_MODELS_STORE_BYTES": 1 << 60,
            },
            *("--host", "llm.example.org"),
        )


@contextlib.contextmanager
def left_by_a_dead_worker() -> Iterator[None]:
    """Two folders in shared memory, as workers make them: 0 is of one that died, and 1 of one that lives."""
    root = shared_memory_of_workers()
    root.mkdir(parents=True, mode=0o700)
    (dead, its_lock), (living, lock) = claimed(root, is_empty=False), claimed(root, is_empty=False)
    os.close(its_lock)
    try:
        for folder in (dead, living):
            (folder / "a.kv").write_bytes(b"x" * 8192)
        yield
    finally:
        os.close(lock)
        shutil.rmtree(root)


def shared_memory_of_workers() -> Path:
    """Where workers of this test's own NATS would keep state."""
    return model_setup._exchange(WorkerSettings(nats_url=f"nats://doctor-{os.getpid()}"))


SETUPS = {"dark": dark, "foreign": foreign, "refusing": refusing, "leaky": leaky}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """What was found in a set-up: each is made and looked at once."""
    return cache(lambda name: SETUPS[name](tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.setup}-{fault.check}-{fault.said[:24]}")
def test_a_broken_setup_is_named_with_its_remedy(fault: Fault, seen) -> None:  # type: ignore[no-untyped-def]
    of_check = [one for one in seen(fault.setup).findings if one["check"] == fault.check]
    found = [one for one in of_check if re.search(fault.said, one["said"])]
    assert found, of_check
    assert all(one["level"] == fault.level for one in found), found
    assert any(re.search(fault.remedy, one["remedy"]) for one in found), found


@pytest.mark.parametrize("setup", SETUPS)
def test_a_broken_setup_ends_with_1_and_tells_no_secret(setup: str, seen) -> None:  # type: ignore[no-untyped-def]
    found = seen(setup)
    assert found.status == 1
    assert not [secret for secret in SECRETS if secret in found.output]
    assert all(one["remedy"] for one in found.findings if one["level"] in ("problem", "warning"))


def test_what_lives_in_shared_memory_is_not_called_dead(seen) -> None:  # type: ignore[no-untyped-def]
    (left,) = [one for one in seen("leaky").findings if "dead workers" in one["said"]]
    assert str(shared_memory_of_workers() / "0") in left["said"]
    assert str(shared_memory_of_workers() / "1") not in left["said"]


async def test_a_healthy_setup_has_no_problem(tmp_path: Path) -> None:
    files = Certificates.made(tmp_path / "tls", days=90)
    passwords = {"operator": SECRETS[0], "gateway": SECRETS[0]}
    users = tmp_path / "users.conf"
    users.write_text(nats_users.users_config([nats_users.gateway(), nats_users.operator()], passwords))
    nats = changed(
        tmp_path / "nats",
        ServerProcess.nats(tmp_path / "nats"),
        including(users, tmp_path / "nats"),
    )
    lines = redis_users.acl(dict.fromkeys(redis_users.USERS, SECRETS[1]))
    valkey = changed(tmp_path / "valkey", ServerProcess.valkey(tmp_path / "valkey"), *lines)
    (tmp_path / "kv").mkdir()
    with running(nats):
        valkey.start()
        try:
            bus = await Bus.connect(f"nats://operator:{SECRETS[0]}@127.0.0.1:{nats.port}", name="test")
            await bus.ensure_streams(StreamLimits())
            await bus.close()
            variables = {
                "INFERFLUX_NATS_URL": f"nats://gateway:{SECRETS[0]}@127.0.0.1:{nats.port}",
                "INFERFLUX_REDIS_URL": f"redis://policy:{SECRETS[1]}@127.0.0.1:{valkey.port}/0",
                "INFERFLUX_GATEWAY_LISTEN": f"127.0.0.1:{free_port()}",
                "INFERFLUX_GATEWAY_HTTP_LISTEN": f"127.0.0.1:{free_port()}",
                "INFERFLUX_POLICY_LISTEN": f"127.0.0.1:{free_port()}",
                CERT: files.server().cert,
                KEY: files.server().key,
                "INFERFLUX_WORKER_MODEL_PATH": DEMO_MODEL,
                "INFERFLUX_WORKER_HOST_BYTES": 1 << 20,
                "INFERFLUX_WORKER_DISK_PATH": tmp_path / "kv",
                "INFERFLUX_WORKER_DISK_BYTES": 1 << 20,
            }
            found = await asyncio.to_thread(doctor, tmp_path, variables, "--host", "localhost")
        finally:
            valkey.kill()
    bad = [one for one in found.findings if one["level"] == "problem"]
    assert not bad
    assert found.status == 0
    checks = ("settings", "versions", "llama.cpp", "ports", "nats", "certificates", "disk", "memory", "files")
    for check in (*checks, "clock"):
        assert found.levels(check) == {"ok"}, check
    # This user may not ask what the server evicts.
    assert found.levels("redis") == {"ok", "not checked"}
    assert not [secret for secret in SECRETS if secret in found.output]


@pytest.mark.long
@pytest.mark.parametrize("kind", [ClusterServers, SentinelServers])
async def test_redis_of_several_servers_is_asked(
    kind: type[ClusterServers | SentinelServers], tmp_path: Path
) -> None:
    async with kind(tmp_path) as servers:
        found = await redis_facts.look(servers.url, TlsFiles(), keeps_policy=True)
        assert (found.failure, found.is_read_only, found.eviction) == (None, False, "noeviction")
        assert found.ahead_s is not None
    gone = await redis_facts.look(servers.url, TlsFiles(), keeps_policy=True)
    assert gone.failure is Failure.UNREACHABLE


async def test_redis_that_takes_connections_and_says_nothing_is_named() -> None:
    with Relay() as silent:
        found = await redis_facts.look(f"redis://127.0.0.1:{silent.port}/0", TlsFiles(), keeps_policy=True)
    assert (found.failure, found.address) == (Failure.SILENT, f"127.0.0.1:{silent.port}")
