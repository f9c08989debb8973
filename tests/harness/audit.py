"""Audit lines of gateways."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferflux.common.calls.audit.files import LineReader

if TYPE_CHECKING:
    from inferflux.cli.stack import Stack

AUDIT_KEY = "an-audit-key-for-tests"
WAIT_S = 20.0


def lines_in(root: Path, request_id: str = "") -> list[dict[str, Any]]:
    """The lines about calls, of a request if one is named, in all chains of a folder."""
    lines = LineReader([root]).new_lines() if root.exists() else ()
    return [line for line in lines if "request_id" in line and request_id in ("", line["request_id"])]


async def line_of(stack: Stack, request_id: str) -> dict[str, Any]:
    """The line of a request, once it is there.

    Raises:
        TimeoutError: there is none.
    """
    async with asyncio.timeout(WAIT_S):
        while not (lines := lines_in(stack.state_dir.path / "audit", request_id)):
            await asyncio.sleep(0.02)
    return lines[0]


async def outcome_of(stack: Stack, request_id: str) -> str:
    """How a request ended: a finish reason or an error's reason, lower case.

    Raises:
        TimeoutError: it has no line.
    """
    return str((await line_of(stack, request_id))["outcome"])
