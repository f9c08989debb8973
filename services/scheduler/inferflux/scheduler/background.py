"""Ending tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


async def cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and return when all have ended, however they did."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
