"""The bus over a real nats-server keeps the bus's promises."""

from __future__ import annotations

import asyncio

import pytest
from harness.bus_contract import BusContract
from harness.servers import ServerProcess

from inferflux.common.bus import Bus


class NatsServer:
    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    async def connect(self, name: str = "test") -> Bus:
        return await Bus.connect(self._process.url, name=name)

    def kill(self) -> None:
        self._process.kill()

    async def start(self) -> None:
        self._process.start()
        await asyncio.to_thread(self._process.wait_ready)


class TestNatsBus(BusContract):
    @pytest.fixture
    def server(self, private_nats: ServerProcess) -> NatsServer:
        return NatsServer(private_nats)
