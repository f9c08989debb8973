"""Audit lines of a stack's gateway."""

from __future__ import annotations

import asyncio
import re

from inferflux.cli.stack import Stack

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
WAIT_S = 20.0


async def outcome_of(stack: Stack, request_id: str) -> str:
    """How a request ended: a finish reason or an error's reason, lower case. Waits for its line.

    Raises:
        TimeoutError: there is none.
    """
    path = stack.state_dir.path / "logs" / "gateway.log"
    async with asyncio.timeout(WAIT_S):
        while True:
            for line in _COLOUR.sub("", path.read_text()).splitlines():
                if request_id in line and (found := re.search(r"\boutcome=(\w+)", line)):
                    return found[1]
            await asyncio.sleep(0.02)
