"""The stack of docker-compose.yml, from what its images hold, answers a chat."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from harness.commands import outcome_of
from harness.deploy import ROOT
from harness.images import ComposeStack

pytestmark = pytest.mark.long

OURS = ("policy", "scheduler", "worker", "gateway")
START_LIMIT_S = 60.0


@pytest.fixture
def admin_key() -> str:
    return f"ifx_{secrets.token_urlsafe(32)}"


@pytest.fixture
def stack(tmp_path: Path, admin_key: str) -> Iterator[ComposeStack]:
    composed = ComposeStack(tmp_path, {"INFERFLUX_POLICY_BOOTSTRAP_KEY": admin_key})
    yield composed
    composed.kill()


async def start(stack: ComposeStack, name: str) -> None:
    """Start a service and wait for its own health check."""
    process = stack.make(name)
    process.start()
    if name == "access":  # others wait for its end
        assert await asyncio.to_thread(process.wait, START_LIMIT_S) == 0, process.log_path.read_text()
    if name not in OURS:
        return
    check = stack.health_check(name)
    deadline = time.monotonic() + START_LIMIT_S
    while not await asyncio.to_thread(process.is_healthy, check):
        assert not process.has_ended, process.log_path.read_text()
        assert time.monotonic() < deadline, process.log_path.read_text()
        await asyncio.sleep(0.1)


async def answer(example: str, environment: Mapping[str, str]) -> str:
    """What an example prints of the model's answer."""
    command = [sys.executable, str(ROOT / "examples" / example), "What is the capital of France?"]
    code, out, err = await outcome_of(command, env=environment)
    assert code == 0, err
    return out.strip()


@pytest.mark.e2e
async def test_the_composed_stack_becomes_healthy_answers_and_drains(
    stack: ComposeStack, admin_key: str
) -> None:
    for name in stack.in_order():
        await start(stack, name)

    password = (stack.volume("nats") / "tokens-default.password").read_text()
    environment = os.environ | {
        "INFERFLUX_ENDPOINT": f"127.0.0.1:{stack.port('gateway', 50051)}",
        "INFERFLUX_API_KEY": admin_key,
        "INFERFLUX_NATS_URL": f"nats://tokens-default:{password}@127.0.0.1:{stack.port('nats', 4222)}",
    }
    for example in ("chat_client.py", "read_tokens_nats.py", "replay_tokens.py"):
        assert await answer(example, environment), example

    for name in reversed(stack.in_order()):
        if name in OURS:
            status = await asyncio.to_thread(stack.processes[name].stop, 40)
            assert status == 0, stack.processes[name].log_path.read_text()
