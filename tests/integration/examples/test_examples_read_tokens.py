"""The examples that read tokens from NATS, run as files, against chunks as a worker publishes them."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.commands import Running, running
from harness.deploy import ROOT

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.v1 import generation_pb2, tokens_pb2

LIMIT_S = 30


def chunk(offset: int, *words: str, epoch: int = 1, event: object = None) -> bytes:
    """A chunk with one token per word."""
    said = tokens_pb2.TokenChunk(epoch=epoch, offset=offset, token_ids=range(len(words)), text="".join(words))
    if isinstance(event, tokens_pb2.Finished):
        said.finished.CopyFrom(event)
    elif isinstance(event, tokens_pb2.Failed):
        said.failed.CopyFrom(event)
    elif isinstance(event, tokens_pb2.Started):
        said.started.CopyFrom(event)
    return said.SerializeToString()


FINISHED = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)
FAILED = tokens_pb2.Failed(code=14, reason="UNAVAILABLE", message="no worker is left")


@asynccontextmanager
async def example(name: str, nats_url: str, *arguments: str) -> AsyncIterator[Running]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("INFERFLUX_")}
    command = [sys.executable, str(ROOT / "examples" / name), "--timeout", str(LIMIT_S), *arguments]
    environment = inherited | {"INFERFLUX_NATS_URL": nats_url}
    async with running(command, environment) as process:
        yield process


async def publish_until_read(bus: Bus, subject: str, said: bytes, process: Running) -> None:
    """Publish a chunk again and again until the reader prints something."""
    while not process.out.read_bytes():
        await bus.publish(subject, said)
        await asyncio.sleep(0.05)


async def test_a_live_reader_prints_every_token_once(bus: Bus, nats_url: str) -> None:
    request_id = secrets.token_hex(8)
    subject = subjects.tokens("default", request_id)
    async with example("read_tokens_nats.py", nats_url, "--request-id", request_id) as process:
        await publish_until_read(bus, subject, chunk(0, "One"), process)
        for said in (
            chunk(0, event=tokens_pb2.Started(worker_id="w")),
            chunk(1, " two"),
            chunk(0, "One"),
            chunk(1, " two"),
            chunk(2, " three", epoch=2),
            chunk(3, " LATE", epoch=1),
            chunk(1, " two", " three", epoch=2),
            chunk(3, " four", epoch=2, event=FINISHED),
        ):
            await bus.publish(subject, said)
        await bus.flush()
        status, out, err = await process.ending(LIMIT_S)
    assert status == 0, err
    assert out == "One two three four"
    assert "4 tokens" in err


async def test_a_live_reader_says_when_it_missed_some(bus: Bus, nats_url: str) -> None:
    request_id = secrets.token_hex(8)
    subject = subjects.tokens("default", request_id)
    async with example("read_tokens_nats.py", nats_url, "--request-id", request_id) as process:
        await publish_until_read(bus, subject, chunk(0, "One"), process)
        await bus.publish(subject, chunk(2, " three"))
        status, _, err = await process.ending(LIMIT_S)
    assert status == 1
    assert "tokens from 1 on were missed" in err


async def test_a_live_reader_ends_with_the_failure_of_the_request(bus: Bus, nats_url: str) -> None:
    request_id = secrets.token_hex(8)
    subject = subjects.tokens("default", request_id)
    async with example("read_tokens_nats.py", nats_url, "--request-id", request_id) as process:
        await publish_until_read(bus, subject, chunk(0, "One"), process)
        await bus.publish(subject, chunk(1, event=FAILED))
        status, _, err = await process.ending(LIMIT_S)
    assert status == 1
    assert "UNAVAILABLE: no worker is left" in err


@pytest.mark.parametrize(
    ("offset", "text"), [(0, "One two three four"), (1, " two three four"), (3, " four"), (4, "")]
)
async def test_a_late_reader_gets_everything_from_its_offset_on(
    bus: Bus, nats_url: str, offset: int, text: str
) -> None:
    await bus.ensure_streams(StreamLimits())
    request_id = secrets.token_hex(8)
    subject = subjects.tokens("acme", request_id)
    for said in (
        chunk(0, "One"),
        chunk(1, " two"),
        chunk(0, "One"),
        chunk(2, " three", epoch=2),
        chunk(3, " LATE", epoch=1),
        chunk(3, " four", epoch=2),
        chunk(4, epoch=2, event=FINISHED),
    ):
        await bus.publish(subject, said)
    await bus.flush()
    arguments = ("--request-id", request_id, "--tenant", "acme", "--offset", str(offset))
    async with example("replay_tokens.py", nats_url, *arguments) as process:
        status, out, err = await process.ending(LIMIT_S)
    assert status == 0, err
    assert out == text + ("\n" if out.endswith("\n") else "")


async def test_a_late_reader_of_nothing_says_so_in_time(bus: Bus, nats_url: str) -> None:
    await bus.ensure_streams(StreamLimits())
    async with example("replay_tokens.py", nats_url, "--request-id", "unknown", "--timeout", "1") as process:
        status, _, err = await process.ending(LIMIT_S)
    assert status == 1
    assert "nothing more of unknown came in 1 s" in err


@pytest.mark.parametrize("name", ["chat_client.py", "read_tokens_nats.py", "replay_tokens.py"])
async def test_every_example_explains_itself_and_names_the_setting_it_misses(
    nats_url: str, name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with example(name, nats_url, "--help") as process:
        status, out, _ = await process.ending(LIMIT_S)
    assert status == 0
    assert "--model" in out
    async with example(name, nats_url, "Hi") as process:
        status, _, err = await process.ending(LIMIT_S)
    assert status == 1
    assert "INFERFLUX_" in err
    assert "make up" in err
    assert "Traceback" not in err
