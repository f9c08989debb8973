"""One whole stack for the tests that only use it: every process, on free ports, serving the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.client import Client

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


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Client]:
    """Speaks to the stack of the test: the shared one, or the test's own of the same name."""
    made = Client(stack.endpoint, stack.api_key)
    yield made
    await made.close()
