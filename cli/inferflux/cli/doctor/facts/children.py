"""Programs that are asked for a line of JSON, in bounded time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_LIMIT_S = 60.0


class ChildError(Exception):
    """It gave no answer.

    Attributes:
        signal: that ended it; 0: none did.
    """

    def __init__(self, message: str, signal: int = 0) -> None:
        super().__init__(message)
        self.signal = signal


async def ask(module: str, *arguments: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The answer of `python -m MODULE ARGUMENTS`.

    Raises:
        ChildError: there is none.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=env, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChildError(f"{module} gave no answer: {type(error).__name__}") from None
    if done.returncode < 0:
        raise ChildError(f"{module} was ended by signal {-done.returncode}", -done.returncode)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ChildError(lines[-1] if lines else f"{module} ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
