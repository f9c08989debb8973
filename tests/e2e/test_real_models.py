"""A newcomer's first minutes: `inferctl up` serves SmolLM2, and its answers make sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.inferctl import Terminal, run
from harness.real_models import real_model

pytestmark = [pytest.mark.e2e, pytest.mark.long]
PORTS = ("gateway", "http", "policy", "nats", "redis")


async def test_up_serves_smollm2_and_a_chat_names_no_model(tmp_path: Path) -> None:
    real_model("smollm2")
    env = {"INFERFLUX_STATE_DIR": str(tmp_path / "state"), "INFERFLUX_DRAIN_LIMIT_S": "10"}
    async with Terminal("up", *(f"--{each}-port=0" for each in PORTS), env=env) as terminal:
        await terminal.see(r"model +smollm2", limit_s=180)
        await terminal.see("Give me three tips for a good night's sleep")
        await terminal.see("Ctrl-C ends it")
        sums = await run("chat", "--temperature", "0", "--max-tokens", "60", "What is 2 + 2?", env=env)
        assert "4" in sums.stdout, sums.stderr
        fruits = await run("chat", "--temperature", "0", "--max-tokens", "60", "Name three fruits.", env=env)
        assert [line[:2] for line in fruits.stdout.splitlines()[:3]] == ["1.", "2.", "3."], fruits.stderr
        terminal.press_ctrl_c()
        assert await terminal.exit_status() == 0
