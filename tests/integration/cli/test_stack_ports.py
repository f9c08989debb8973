"""Choosing ports against real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from inferflux.cli.errors import CommandError
from inferflux.cli.stack import ports
from inferflux.cli.stack.options import StackOptions
from inferflux.common.servers import free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_free_ports_are_all_different() -> None:
    chosen = await ports.choose(StackOptions(), wait_for_leftovers=False)
    assert len({chosen.nats, chosen.redis, chosen.policy, chosen.gateway}) == 4


async def test_the_port_asked_for_is_taken_when_it_is_free() -> None:
    port = free_port()
    chosen = await ports.choose(StackOptions(gateway_port=port), wait_for_leftovers=False)
    assert chosen.gateway == port


async def test_a_taken_port_is_named_with_its_flag(taken_port: int) -> None:
    with pytest.raises(CommandError, match=f"port {taken_port} is taken: choose another with --nats-port"):
        await ports.choose(StackOptions(nats_port=taken_port), wait_for_leftovers=False)


async def test_one_port_cannot_be_two_servers() -> None:
    port = free_port()
    with pytest.raises(CommandError, match=r"asked for twice.*--gateway-port"):
        await ports.choose(StackOptions(nats_port=port, gateway_port=port), wait_for_leftovers=False)
