"""What is done to a container, and how it is made good again."""

from __future__ import annotations

import asyncio
import os
import signal
from enum import Enum

from compose.engine import Compose, Container, run


class Fault(Enum):
    """A kind of fault."""

    # The container leaves the network in order and comes back, with a new address perhaps.
    DISCONNECT = "disconnect"
    # The cable: nothing passes any more, and neither side is told.
    CUT = "cut"
    # SIGKILL to process 1. The restart policy starts it again.
    CRASH = "crash"
    # `docker kill`. It stays away until it is started.
    KILL = "kill"


async def inflict(fault: Fault, compose: Compose, container: Container, seconds: float) -> None:
    """Do it, wait for `seconds`, and make it good; nothing stays broken if this is cancelled."""
    match fault:
        case Fault.DISCONNECT:
            await _disconnect(compose.network, container, seconds)
        case Fault.CUT:
            await _cut(container, seconds)
        case Fault.CRASH:
            os.kill(await container.pid(), signal.SIGKILL)
            await asyncio.sleep(seconds)
        case Fault.KILL:
            await run("docker", "kill", container.id)
            try:
                await asyncio.sleep(seconds)
            finally:
                await run("docker", "start", container.id)


async def _disconnect(network: str, container: Container, seconds: float) -> None:
    await run("docker", "network", "disconnect", network, container.id)
    try:
        await asyncio.sleep(seconds)
    finally:
        await run("docker", "network", "connect", "--alias", container.service, network, container.id)


async def _cut(container: Container, seconds: float) -> None:
    cable = await container.interface()
    await run("ip", "link", "set", cable, "down")
    try:
        await asyncio.sleep(seconds)
    finally:
        await run("ip", "link", "set", cable, "up")
