"""`inferctl` whose connection is lost, and `inferctl resume`, before a backend that a test plays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.cuttable import CuttableProxy
from harness.deploy import ROOT
from harness.gateway import Backend, Client, GatewayProcess, finished, tokens, until
from harness.inferctl import Terminal, environment, run

from inferflux.v1 import scheduler_pb2

KEPT = scheduler_pb2.ReaderReply(was_found=True, resume_window_s=60)
COMPLETE = ("complete", "--model", "demo", "--resume-window", "60", "--stats")


@pytest.fixture
def env(gateway: GatewayProcess, client: Client, tmp_path: Path) -> dict[str, str]:
    return {
        "INFERFLUX_ENDPOINT": f"127.0.0.1:{gateway.port}",
        "INFERFLUX_API_KEY": client.key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


async def test_a_connection_that_is_lost_before_the_first_token_costs_nothing(
    env: dict[str, str], backend: Backend
) -> None:
    backend.reader_replies["early-1"] = KEPT
    async with CuttableProxy(env["INFERFLUX_ENDPOINT"]) as proxy:
        through = env | {"INFERFLUX_ENDPOINT": proxy.endpoint}
        asking = asyncio.create_task(run(*COMPLETE, "--request-id", "early-1", "hello", env=through))
        job = await backend.job("early-1")
        proxy.break_up()
        await until(lambda: any(n.joined.request.request_id == "early-1" for n in backend.reader_notices))
        await backend.say(job, tokens(0, 1), finished(2, attempt=job.attempt_id))
        result = await asking
    await backend.done("early-1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "0 1 \n"
    assert "resumed" in result.stderr


async def test_the_example_outlives_such_a_loss_too(env: dict[str, str], backend: Backend) -> None:
    before = set(backend.jobs)
    async with CuttableProxy(env["INFERFLUX_ENDPOINT"]) as proxy:
        with example(env | {"INFERFLUX_ENDPOINT": proxy.endpoint}, "--resume-window", "60") as process:
            await until(lambda: set(backend.jobs) > before)
            (request_id,) = set(backend.jobs) - before
            backend.reader_replies[request_id] = KEPT
            job = await backend.job(request_id)
            proxy.break_up()
            await until(
                lambda: any(n.joined.request.request_id == request_id for n in backend.reader_notices)
            )
            await backend.say(job, tokens(0, 1), finished(2, attempt=job.attempt_id))
            out, err = await asyncio.to_thread(process.communicate, timeout=60)
    await backend.done(request_id)
    assert (process.returncode, out) == (0, "0 1 "), err


async def test_the_example_refuses_a_negative_window_by_name(env: dict[str, str]) -> None:
    with example(env, "--resume-window", "-3") as process:
        _, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 2
    assert "--resume-window" in err
    assert "number of seconds" in err


async def test_ctrl_c_before_the_first_token_cancels_a_request_with_a_window(
    env: dict[str, str], backend: Backend
) -> None:
    backend.known.add("early-2")
    backend.reader_replies["early-2"] = KEPT
    async with Terminal(*COMPLETE, "--request-id", "early-2", "hello", env=env) as terminal:
        await backend.job("early-2")
        terminal.press_ctrl_c()
        assert await terminal.exit_status() != 0
    assert "early-2" in backend.cancelled
    await backend.done("early-2")


async def test_resume_streams_an_answer_from_any_token_on(
    env: dict[str, str], client: Client, backend: Backend
) -> None:
    stream = client.generate("again-1")
    await backend.finish(await backend.job("again-1"), n=3)
    await stream.rest()
    assert (await run("resume", "again-1", env=env)).stdout == "0 1 2 \n"
    assert (await run("resume", "again-1", "--offset", "2", env=env)).stdout == "2 \n"
    unknown = await run("resume", "unknown-request", env=env)
    assert unknown.returncode == 1
    assert "unknown-request" in unknown.stderr


@contextmanager
def example(env: dict[str, str], *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`examples/chat_client.py`, ended at the latest with the context."""
    command = [sys.executable, str(ROOT / "examples" / "chat_client.py"), "--model", "demo", *flags, "hello"]
    with subprocess.Popen(
        command, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
