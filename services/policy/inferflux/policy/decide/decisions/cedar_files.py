"""Cedar's files: read at the start, and again when they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferflux.common.process import logs
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.tasks import is_set_within
from inferflux.common.process.tls import stamp_of
from inferflux.policy.metrics import DecisionMetrics

from .cedar import NAME, Cedar, CedarRules

MAX_BYTES = 4 << 20
_LOOK_EVERY_S = 0.5

log = logs.get()

Stamp = Sequence[object]


@dataclass(frozen=True, slots=True)
class CedarFiles:
    """Where rules are.

    Attributes:
        policies: a file, or a folder whose `*.cedar` are taken together.
        entities: a file with JSON; None for none.
    """

    policies: Path
    entities: Path | None = None

    def stamp(self) -> Stamp:
        """Changes with the files."""
        paths = self._paths()
        return [*paths, *stamp_of(paths)]

    def read(self) -> CedarRules:
        """Raises:
        ValueError: they cannot be used; says which, and why.
        """
        files = _policy_files(self.policies)
        if not files:
            raise ValueError(f"{self.policies} has no *.cedar file")
        policies = {str(path): _read(path) for path in files}
        return CedarRules(policies, _read(self.entities) if self.entities is not None else "")

    def _paths(self) -> list[Path]:
        return [*_policy_files(self.policies), *([self.entities] if self.entities is not None else [])]


class CedarReload:
    """Gives a backend its rules anew when their files have changed.

    Files that cannot be used change nothing. New ones are read once they have stayed the same from one look
    to the next: one that is being written is not taken.

    Args:
        stamp: of the files, from before they were read.
        on_change: called after new rules are in use.
    """

    def __init__(
        self,
        files: CedarFiles,
        stamp: Stamp,
        backend: Cedar,
        metrics: DecisionMetrics,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._files = files
        self._backend = backend
        self._metrics = metrics
        self._on_change = on_change
        self._used = self._seen = stamp

    async def run_until(self, shutdown: Shutdown) -> None:
        while not await is_set_within(shutdown.requested, _LOOK_EVERY_S):
            await self.look()

    async def look(self) -> None:
        """Read the files if they have changed, and no longer change."""
        stamp = await asyncio.to_thread(self._files.stamp)
        is_settled, self._seen = stamp == self._seen, stamp
        if stamp == self._used or not is_settled:
            return
        self._used = stamp
        try:
            rules = await asyncio.to_thread(self._files.read)
        except ValueError as error:
            self._metrics.reloads.labels(NAME, "refused").inc()
            log.error("changed policies cannot be used: those before stay in force", why=str(error))
            return
        self._backend.rules = rules
        self._on_change()
        self._metrics.reloads.labels(NAME, "used").inc()
        log.info("changed policies are in force", policies=str(self._files.policies))


def _policy_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.cedar")) if path.is_dir() else [path]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    return text
