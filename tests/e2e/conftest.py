"""One whole stack for the tests that only use it: every process, on free ports, serving the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferflux.cli.stack import Stack, StackOptions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The model that comes with the repository."""
    return ROOT / "models" / "inferflux-demo.gguf"


@pytest.fixture(scope="session")
async def stack(demo_model: Path) -> AsyncIterator[Stack]:
    """A stack that tests share: they may use it, and leave its processes alone."""
    async with Stack(StackOptions(model=demo_model)) as running:
        yield running
