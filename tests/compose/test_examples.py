"""The examples against the stack."""

from __future__ import annotations

import os
import secrets
import sys

from chaos.workload import PROMPTS, countdown_text
from harness.client import Client, countdown
from harness.deploy import ROOT

from compose.engine import Compose, run
from compose.load import Answers


async def example(name: str, *words: str, environment: dict[str, str]) -> str:
    """What an example prints."""
    return await run(
        sys.executable, str(ROOT / "examples" / name), *words, environment=os.environ | environment
    )


async def test_a_chat(endpoint: str, admin_key: str) -> None:
    environment = {"INFERFLUX_ENDPOINT": endpoint, "INFERFLUX_API_KEY": admin_key}
    assert "Paris" in await example(
        "chat_client.py", "What is the capital of France?", environment=environment
    )


async def test_tokens_are_read_straight_from_nats_once_it_is_published(
    stack: Compose, endpoint: str, admin_key: str, client: Client, expected: Answers
) -> None:
    published = stack.with_files(ROOT / "deploy/publish.yml")
    await published.up()
    (nats,) = await published.containers("nats")
    password = await nats.execute("cat", "/access/tokens-default.password")
    environment = {
        "INFERFLUX_ENDPOINT": endpoint,
        "INFERFLUX_API_KEY": admin_key,
        "INFERFLUX_NATS_URL": f"nats://tokens-default:{password}@{await published('port', 'nats', '4222')}",
    }
    assert "Paris" in await example(
        "read_tokens_nats.py", "What is the capital of France?", environment=environment
    )
    start, end = PROMPTS[0]
    request_id = secrets.token_hex(8)
    answer = await client.ask(countdown(start, end), request_id=request_id)
    assert answer.token_ids == expected[start, end]
    replayed = await example("replay_tokens.py", "--request-id", request_id, environment=environment)
    assert replayed.splitlines()[0] == countdown_text(start, end)
    # As it was: the faults are done to what users run.
    await stack.up()
