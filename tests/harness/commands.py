"""Commands that a test runs to their end.

Not by `asyncio.create_subprocess_exec`: on uvloop that forks, and gRPC's fork handlers crash or hang the
child, and with it the test (`common/process/child/children.py`). Not with pipes either: what a command leaves
behind holds them open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferflux.cli.stack.servers import dying_with_parent
from inferflux.common.process.child.children import wait_for_end

_TAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs.

    Attributes:
        out, err: files of what it has printed so far.
    """

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def tail(self) -> str:
        """The last lines that it printed."""
        said = self.out.read_text(errors="replace") + self.err.read_text(errors="replace")
        return "\n".join(said.splitlines()[-_TAIL_LINES:])

    async def ending(self, limit_s: float = 60.0) -> tuple[int, str, str]:
        """How it ended, and what it printed to stdout and to stderr.

        Raises:
            AssertionError: it has not ended after `limit_s`; with the last lines that it printed.
        """
        try:
            async with asyncio.timeout(limit_s):
                code = await wait_for_end(self.process)
        except TimeoutError:
            raise AssertionError(f"it did not end within {limit_s:g} s:\n{self.tail}") from None
        return code, self.out.read_text(errors="replace"), self.err.read_text(errors="replace")

    async def until_says(self, text: str, limit_s: float) -> None:
        """Return when it has printed that.

        Raises:
            AssertionError: it has ended, or time is up; with the last lines.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while text not in self.out.read_text(errors="replace"):
                    assert self.process.poll() is None, f"it ended without {text!r}:\n{self.tail}"
                    await asyncio.sleep(0.05)
                return
        raise AssertionError(f"it did not say {text!r} within {limit_s:g} s:\n{self.tail}")


@contextlib.asynccontextmanager
async def running(
    command: Sequence[str], env: Mapping[str, str] | None = None, *, said: bytes = b""
) -> AsyncIterator[Running]:
    """Run a command; on leaving, it and its process group are killed.

    Args:
        said: what it reads from stdin.
    """
    with tempfile.TemporaryDirectory(prefix="command-") as folder:
        stdin, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        stdin.write_bytes(said)
        with stdin.open("rb") as from_in, out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                dying_with_parent(command),
                env=None if env is None else dict(env),
                stdin=from_in,
                stdout=to_out,
                stderr=to_err,
                start_new_session=True,
            )
        try:
            yield Running(process, out, err)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def outcome_of(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    said: bytes = b"",
    limit_s: float = 60.0,
) -> tuple[int, str, str]:
    """As `Running.ending`, of a command that is run for that."""
    async with running(command, env, said=said) as run:
        return await run.ending(limit_s)
