"""A process for each model: what ends one leaves the others alone, and there are never too many."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.gateway import until
from harness.gguf_files import Gguf, text, texts, tiny_model

from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted, Unavailable
from inferflux.gateway.tokenizer.model_tokenizer import TokenizerLimits
from inferflux.gateway.tokenizer.tokenizers import Tokenizers
from inferflux.v1.generation_pb2 import StructuredConstraint as Constraint

ABORTS = tiny_model().having(
    {"tokenizer.ggml.tokens": texts(bytes([255, i // 256, i % 256]) for i in range(260))}
)
THROWS = tiny_model().having({"tokenizer.ggml.model": text("llama")})
Clients = Callable[..., Tokenizers]


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    """Clients whose tokenizer files are those of `files`, by digest; they end with the test."""
    made: list[Tokenizers] = []

    def make(files: dict[str, Gguf], limits: TokenizerLimits | None = None) -> Tokenizers:
        for digest, file in files.items():
            (tmp_path / digest).write_bytes(file.tokenizer())

        async def path(digest: str) -> Path:
            return tmp_path / digest

        made.append(Tokenizers(limits or TokenizerLimits(), path))
        return made[-1]

    yield make
    await asyncio.gather(*(client.close() for client in made))


async def works(client: Tokenizers, digest: str = "good") -> None:
    assert list(await client.tokenize(digest, "he", 100)) == [257, 256]


@pytest.mark.parametrize("hostile", [ABORTS, THROWS])
async def test_a_vocabulary_that_ends_its_process_disturbs_no_other_model(
    clients: Clients, hostile: Gguf
) -> None:
    client = clients({"good": tiny_model(), "bad": hostile})
    await works(client)
    before = client.pids["good"]
    answers = [client.tokenize("bad", "he", 100) for _ in range(4)]
    tokens = [works(client) for _ in range(20)]
    results = await asyncio.gather(*answers, *tokens, return_exceptions=True)
    for error in results[:4]:
        assert isinstance(error, Unavailable)
        assert error.reason == "TOKENIZER_FAILED"
        assert error.message.isprintable()
        assert "its process ended over it" in error.message
    assert results[4:] == [None] * 20
    assert client.pids == {"good": before}


async def test_it_is_not_started_again_and_again(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    client = clients({"bad": ABORTS})
    starts = 0
    popen = subprocess.Popen

    def counted(command: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        nonlocal starts
        starts += 1
        return popen(command, **kwargs)

    monkeypatch.setattr("inferflux.gateway.tokenizer.tokenizer_child.subprocess.Popen", counted)
    for _ in range(50):
        with pytest.raises(Unavailable, match="GGML_ASSERT"):
            await client.tokenize("bad", "he", 100)
        client.revive()
    # Two at once, and one for each wait of 1 s, 2 s, ... that went by.
    assert starts <= 4


async def test_the_idle_one_that_was_asked_least_recently_makes_room(clients: Clients) -> None:
    client = clients({name: tiny_model() for name in "abc"}, TokenizerLimits(processes=2))
    for digest in ("a", "b", "a", "c"):
        await works(client, digest)
    assert set(client.pids) == {"a", "c"}
    await works(client, "b")
    assert set(client.pids) == {"c", "b"}


async def test_a_model_waits_while_every_process_is_busy(clients: Clients) -> None:
    loops = tiny_model().having(
        {
            "tokenizer.chat_template": text(
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
            )
        }
    )
    client = clients({"busy": loops, "good": tiny_model()}, TokenizerLimits(processes=1, time_limit_s=5.0))
    await client.load("busy")
    asking = asyncio.create_task(client.render_chat("busy", [], 100))
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted) as caught:
        await client.tokenize("good", "he", 100)
    assert caught.value.reason == "TOKENIZERS_BUSY"
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await works(client)


async def test_one_that_was_killed_comes_back_without_a_request(clients: Clients) -> None:
    client = clients({"good": tiny_model()})
    await works(client)
    before = client.pids["good"]
    os.kill(before, signal.SIGKILL)
    await until(lambda: not client.pids)

    def is_back() -> bool:
        client.revive()
        return client.pids.get("good", before) != before

    await until(is_back)
    await works(client)


async def test_a_system_that_starts_no_process_is_told_until_it_does(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = clients({"good": tiny_model()})

    def refused(*_args: object, **_kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr("inferflux.gateway.tokenizer.tokenizer_child.subprocess.Popen", refused)
        with pytest.raises(Unavailable, match="cannot be started"):
            await works(client)
        assert "cannot be started" in client.revive()
    await until(lambda: not client.revive())
    await works(client)


async def test_a_refused_start_counts_no_more_when_another_process_was_started(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = clients({"good": tiny_model(), "other": tiny_model()}, TokenizerLimits(processes=1))

    def refused(*_args: object, **_kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr("inferflux.gateway.tokenizer.tokenizer_child.subprocess.Popen", refused)
        with pytest.raises(Unavailable, match="cannot be started"):
            await works(client, "other")
    await works(client)
    assert client.revive() == ""


async def test_a_model_more_than_are_remembered_is_refused_while_all_are_asked(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be loaded has no process while its callers still wait for the error."""
    monkeypatch.setattr("inferflux.gateway.tokenizer.tokenizers._MAX_REMEMBERED", 0)
    monkeypatch.setattr("inferflux.gateway.tokenizer.model_tokenizer.ModelTokenizer.is_idle", False)
    client = clients({"bad": THROWS, "good": tiny_model()}, TokenizerLimits(processes=1))
    with pytest.raises(Unavailable):
        await client.load("bad")
    with pytest.raises(ResourceExhausted) as caught:
        await client.load("good")
    assert caught.value.reason == "TOKENIZERS_BUSY"


async def test_a_start_that_is_cancelled_leaves_no_process(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(command: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(popen(command, **kwargs))
        return started[-1]

    async def wait(**_kwargs: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("inferflux.gateway.tokenizer.tokenizer_child.subprocess.Popen", noted)
    monkeypatch.setattr("inferflux.common.process.child.frames.asyncio.open_connection", wait)
    client = clients({"good": tiny_model()})
    loading = asyncio.create_task(client.load("good"))
    await until(lambda: bool(started))
    await client.close()
    await asyncio.gather(loading, return_exceptions=True)
    assert started[0].returncode == -signal.SIGKILL


async def test_a_constraint_is_tried_where_it_can_do_no_harm(clients: Clients) -> None:
    client = clients({"good": tiny_model()})
    await client.compile("good", Constraint(regex="[a-z]+"), field="params.constraint.regex")
    before = client.pids["good"]
    with pytest.raises(InvalidArgument, match="unclosed") as refused:
        await client.compile("good", Constraint(regex="("), field="params.constraint.regex")
    assert (refused.value.field, refused.value.reason) == ("params.constraint.regex", "BAD_CONSTRAINT")
    await works(client)
    assert client.pids["good"] == before


async def test_a_constraint_that_ends_its_process_is_refused(clients: Clients) -> None:
    """llguidance runs out of stack over a number like this."""
    client = clients({"good": tiny_model()}, TokenizerLimits(time_limit_s=10.0))
    hostile = Constraint(lark='start: %json {"type": "integer", "const": -1e25}')
    with pytest.raises(InvalidArgument) as refused:
        await client.compile("good", hostile, field="params.constraint.lark")
    assert (refused.value.field, refused.value.reason) == ("params.constraint.lark", "CONSTRAINT_CRASHES")
    await client.compile("good", Constraint(regex="[a-z]+"), field="params.constraint.regex")


async def test_a_constraint_that_takes_too_long_is_refused_and_texts_are_worked_on(clients: Clients) -> None:
    """Nothing compiles within no time."""
    client = clients({"good": tiny_model()}, TokenizerLimits(time_limit_s=0.0))
    await client.load("good")
    with pytest.raises(InvalidArgument, match="compiling the constraint took longer") as refused:
        await client.compile("good", Constraint(lark='start: "a"'), field="params.constraint.lark")
    assert refused.value.reason == "CONSTRAINT_TOO_SLOW"
