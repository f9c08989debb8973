"""Choosing ports against real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack import ports
from inferflux.cli.stack.options import StackOptions
from inferflux.cli.stack.servers import free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_free_ports_are_all_different() -> None:
    options = StackOptions(gateways=3, policies=2)
    chosen = await ports.choose(options, wait_for_leftovers=False)
    gateways = [port for pair in chosen.gateways for port in pair]
    assert len({chosen.nats, chosen.redis, *chosen.policies, *gateways}) == 1 + 1 + 2 + 6


async def test_ports_of_servers_that_others_run_are_not_asked_for(taken_port: int) -> None:
    options = StackOptions(nats_port=taken_port, nats_url="nats://a:1", redis_port=taken_port, redis_url="b")
    await ports.choose(options, wait_for_leftovers=False)


async def test_the_port_asked_for_is_taken_when_it_is_free() -> None:
    port = free_port()
    chosen = await ports.choose(StackOptions(gateway_port=port), wait_for_leftovers=False)
    assert chosen.gateway == port


async def test_a_taken_port_is_named_with_its_flag(taken_port: int) -> None:
    with pytest.raises(CommandError, match=f"port {taken_port} is taken: choose another with --nats-port"):
        await ports.choose(StackOptions(nats_port=taken_port), wait_for_leftovers=False)


async def test_all_taken_ports_are_named_at_once(taken_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        second = other.getsockname()[1]
        options = StackOptions(nats_port=taken_port, gateway_port=second)
        named = f"ports {taken_port}, {second} are taken: choose others with --nats-port, --gateway-port"
        with pytest.raises(CommandError, match=named):
            await ports.choose(options, wait_for_leftovers=False)


async def test_http_takes_the_usual_port_or_any_that_is_free(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = free_port()
    for usual, is_taken in ((free, False), (taken_port, True)):
        monkeypatch.setattr(ports, "_USUAL_HTTP_PORT", usual)
        chosen = await ports.choose(StackOptions(http_port=None), wait_for_leftovers=False)
        assert (chosen.http != usual) is is_taken
    with pytest.raises(CommandError, match="--http-port"):
        await ports.choose(StackOptions(http_port=taken_port), wait_for_leftovers=False)


async def test_one_port_cannot_be_two_servers() -> None:
    port = free_port()
    with pytest.raises(CommandError, match=r"asked for twice.*--gateway-port"):
        await ports.choose(StackOptions(nats_port=port, gateway_port=port), wait_for_leftovers=False)
