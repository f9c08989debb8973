"""What is done to a container, and how it is made good again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
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


Moment = Callable[[], Awaitable[None]]


async def inflict(
    fault: Fault, compose: Compose, container: Container, seconds: float, moment: Moment
) -> None:
    """Do it at a moment, wait for `seconds`, and make it good; nothing stays broken if this is cancelled.

    Args:
        moment: returns when the fault shall come. All that can be looked up before is looked up by then.
    """
    match fault:
        case Fault.DISCONNECT:
            await moment()
            await _disconnect(compose.network, container, seconds)
        case Fault.CUT:
            cable = await container.interface()
            await moment()
            await _cut(cable, seconds)
        case Fault.CRASH:
            pid = await container.pid()
            await moment()
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(seconds)
        case Fault.KILL:
            await moment()
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


async def _cut(cable: str, seconds: float) -> None:
    await run("ip", "link", "set", cable, "down")
    try:
        await asyncio.sleep(seconds)
    finally:
        await run("ip", "link", "set", cable, "up")
