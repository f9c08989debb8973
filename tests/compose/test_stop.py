"""Taking the stack down while it is full, and getting in again."""

from __future__ import annotations

import asyncio
import secrets

import grpc.aio
import pytest
from harness.client import Client, countdown

from compose.engine import Compose
from compose.load import Answers, Load
from compose.notes import Notes

REQUESTS = 64


@pytest.mark.timeout(600)
async def test_down_fails_no_request_that_was_accepted(
    stack: Compose, client: Client, expected: Answers, notes: Notes
) -> None:
    load = Load(client, expected, "drain")
    asked = asyncio.gather(*(load.one(i, 0) for i in range(REQUESTS)))
    await client.until_status(lambda s: s.scheduler.queued >= REQUESTS // 2 and s.scheduler.running > 0)
    before = len(load.done)
    down_s = await stack.down()
    whole = len(load.done)
    assert not await stack.containers()
    up_s = await stack.up()
    await asked
    said = load.check()
    assert len(load.done) == REQUESTS
    notes.add(
        f"down with {REQUESTS - before} requests under way: {down_s:.1f} s, {whole - before} whole by then, "
        f"{REQUESTS - whole} after up ({up_s:.1f} s): {said}"
    )


@pytest.mark.timeout(300)
async def test_a_new_admin_key_is_the_way_back_in(
    stack: Compose, endpoint: str, client: Client, expected: Answers
) -> None:
    """The first key is in the logs alone, and they went with `down`."""
    assert "ifx_" not in await stack("logs", "policy")
    key = f"ifx_{secrets.token_urlsafe(32)}"
    with_key = Client(endpoint, key)
    try:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await with_key.ask(countdown(9, 3))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await stack.with_environment(INFERFLUX_POLICY_BOOTSTRAP_KEY=key).up()
        assert (await with_key.ask(countdown(9, 3))).token_ids == expected[9, 3]
        # The first one is not revoked by that.
        assert (await client.ask(countdown(9, 3))).token_ids == expected[9, 3]
    finally:
        await with_key.close()
