"""Tokenizers loaded ahead: how many at a time, whatever heartbeats name."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.tasks import Background
from inferflux.gateway.tokenizer import warm_up
from inferflux.gateway.tokenizer.warm_up import WarmUp


class SlowText:
    """Loads a tokenizer when it is told to, and counts."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.digests: list[str] = []
        self.now = self.most = 0

    async def load(self, digest: str) -> None:
        self.digests.append(digest)
        self.now += 1
        self.most = max(self.most, self.now)
        await self.release.wait()
        self.now -= 1
        raise Unavailable("not stored", reason="TOKENIZER_FAILED")


async def test_invented_models_cost_a_bounded_number_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_RETRIES_S", (0.0, 0.0))
    text, background = SlowText(), Background()
    warm = WarmUp(text, background)  # type: ignore[arg-type]
    for i in range(1000):
        warm.on_model(str(i))
        warm.on_model("0")
    for _ in range(100):
        await asyncio.sleep(0)
    text.release.set()
    await background.finish(10.0)
    assert len(text.digests) == 2 * 64
    assert text.most == 4
    warm.on_model("later")
    await background.finish(10.0)
    assert text.digests[-1] == "later"
