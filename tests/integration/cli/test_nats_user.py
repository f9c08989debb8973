"""`inferctl admin nats-user`, on a stack of which only nats-server runs, and `inferctl admin certs`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from harness.inferctl import run
from harness.servers import ServerProcess

from inferflux.cli.reach.state_dir import StackState, StateDir
from inferflux.cli.stack.access import Access, grant
from inferflux.cli.stack.cert_files import NAMES, ca_file, files_of
from inferflux.cli.stack.ports import Ports
from inferflux.cli.stack.servers import free_port, nats_command
from inferflux.client.token_reader import TokenReader
from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import PermissionDenied, Unavailable
from inferflux.common.servers import nats_users
from inferflux.v1 import tokens_pb2


class LoneNats:
    """The nats-server of a stack, and the state directory that says so."""

    def __init__(self, path: Path) -> None:
        self.state_dir = StateDir(path)
        self.state_dir.prepare()
        self.ports = Ports(nats=free_port(), redis=1, policy=1, gateway=1, http=1)
        self.access: Access = grant(self.state_dir, ["worker-0"])
        port = self.ports.nats
        command = nats_command(port, path / "nats", users_file=self.access.nats_users_file)
        self.process = ServerProcess(command, port=port, name="nats-server", log_path=path / "log")

    def url(self, user: str) -> str:
        return self.access.nats_url(self.ports, user)

    def publish(self) -> None:
        state = StackState(
            pid=os.getpid(),
            endpoint="127.0.0.1:1",
            api_key="ifx_",
            nats_url=self.url(nats_users.OPERATOR),
            tokens_url=self.url("tokens-default"),
            redis_url="",
            model="",
            processes={"nats": self.process.pid, "worker-0": 1},
            metrics={},
        )
        self.state_dir.publish(state)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LoneNats]:
    made = LoneNats(tmp_path)
    made.process.start()
    try:
        made.process.wait_ready()
        with made.state_dir.locked():
            made.publish()
            yield made
    finally:
        made.process.kill()


async def nats_user(stack: LoneNats, *arguments: str) -> str:
    where = ["--state-dir", str(stack.state_dir.path)]
    ended = await run("admin", "nats-user", *arguments, *where, env={})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


async def test_a_user_for_a_tenant_is_made_on_the_running_stack_and_taken_away_again(stack: LoneNats) -> None:
    scheduler = await Bus.connect(stack.url(nats_users.SCHEDULER), name="scheduler")
    try:
        await scheduler.ensure_streams(StreamLimits())
        last = tokens_pb2.TokenChunk(epoch=1)
        last.finished.SetInParent()
        for tenant in ("acme", "default"):
            await scheduler.publish(subjects.tokens(tenant, "r1"), last.SerializeToString())
        url = await nats_user(stack, "acme")
        assert await nats_user(stack, "acme") == url
        async with TokenReader(url) as reader:
            assert len([chunk async for chunk in reader.read("acme", "r1")]) == 1
            with pytest.raises(PermissionDenied):
                await anext(reader.read("default", "r1"))
        # What was there goes on: its connection, and the user of the first tenant.
        await scheduler.flush()
        async with TokenReader(stack.url("tokens-default")) as reader:
            assert len([chunk async for chunk in reader.read("default", "r1")]) == 1
        assert await nats_user(stack, "acme", "--remove") == "tokens-acme may connect no more"
        with pytest.raises(Unavailable):
            await Bus.connect(url, name="t", connect_timeout_s=1)
        again = await run(
            "admin", "nats-user", "acme", "--remove", "--state-dir", str(stack.state_dir.path), env={}
        )
        assert (again.returncode, again.stderr) == (1, "inferctl: there is no user tokens-acme\n")
    finally:
        await scheduler.close()


async def test_users_that_are_made_at_the_same_time_are_all_made(stack: LoneNats) -> None:
    tenants = ["acme", "zeta", "omega"]
    urls = await asyncio.gather(*(nats_user(stack, tenant) for tenant in tenants))
    assert set(stack.state_dir.passwords("nats")) >= {f"tokens-{tenant}" for tenant in tenants}
    for url in urls:
        async with TokenReader(url):
            pass


async def test_without_a_stack_it_prints_what_a_nats_server_of_ones_own_needs(tmp_path: Path) -> None:
    refused = await run("admin", "nats-user", "acme", "--state-dir", str(tmp_path), env={})
    assert refused.returncode == 1
    assert "--config" in refused.stderr
    printed = await run("admin", "nats-user", "acme", "--config", env={})
    assert printed.returncode == 0
    assert 'user: "tokens-acme"' in printed.stdout
    assert (
        f'subscribe: {{allow: ["_INBOX_tokens-acme.>", "{subjects.tokens("acme", ">")}"]}}' in printed.stdout
    )


@pytest.mark.parametrize("tenant", ["a.b", ">", "*", "", "a b", "Acme", "-a", "x" * 64])
async def test_a_name_that_no_tenant_can_have_is_refused(tenant: str) -> None:
    refused = await run("admin", "nats-user", "--config", "--", tenant, env={})
    assert refused.returncode == 2
    assert refused.stdout == ""


async def test_certificates_are_made_and_renewed_under_the_same_ca(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    made = await run("admin", "certs", str(folder), "--host", "gw.example", "--host", "192.0.2.7", env={})
    assert made.returncode == 0, made.stderr
    ca = x509.load_pem_x509_certificate(ca_file(folder).read_bytes())
    before = {name: files_of(folder, name)[0].read_bytes() for name in NAMES}
    for name, text in before.items():
        certificate = x509.load_pem_x509_certificate(text)
        certificate.verify_directly_issued_by(ca)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {name, "localhost", "gw.example"} <= set(names.get_values_for_type(x509.DNSName))
        assert {"127.0.0.1", "192.0.2.7"} <= {str(a) for a in names.get_values_for_type(x509.IPAddress)}
        assert files_of(folder, name)[1].stat().st_mode & 0o777 == 0o600
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "gw.example, 192.0.2.7" in made.stdout
    again = await run("admin", "certs", str(folder), env={})
    assert again.returncode == 0
    assert x509.load_pem_x509_certificate(ca_file(folder).read_bytes()) == ca
    assert all(files_of(folder, name)[0].read_bytes() != text for name, text in before.items())


async def test_a_host_that_is_none_is_refused(tmp_path: Path) -> None:
    refused = await run("admin", "certs", str(tmp_path / "certs"), "--host", "my gateway", env={})
    assert (refused.returncode, (tmp_path / "certs").exists()) == (1, False)
    assert "'my gateway'" in refused.stderr


async def test_a_folder_with_another_ca_is_left_as_it_is(tmp_path: Path) -> None:
    ca_file(tmp_path).write_text("another program's")
    refused = await run("admin", "certs", str(tmp_path), env={})
    assert refused.returncode == 1
    assert "holds no CA" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ca.pem"]


@pytest.mark.parametrize("tenant", ["ACME", "acme.x", "a*", ">", "", "-acme", "a" * 64, "Äcme"])
async def test_a_tenant_that_no_key_could_have_gets_no_user(tenant: str) -> None:
    ended = await run("admin", "nats-user", "--config", "--", tenant, env={})
    assert ended.returncode == 2
    assert "a tenant is 1-63 of a-z 0-9 _ -" in " ".join(ended.stderr.replace("│", " ").split())
