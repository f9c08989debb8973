"""Templates and texts that would break a gateway, and the tokenizer process that breaks instead."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from harness.gateway import Backend, Client, GatewayProcess, StartGateway, until
from harness.gguf_files import texts, tiny_model
from harness.tokenizers import write_tokenizer

from inferflux.common.bus import Bus
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.v1 import inference_pb2

Serve = Callable[..., Awaitable[Backend]]


@pytest.fixture
async def serve_model(session_bus: Bus, tmp_path: Path, client: Client) -> AsyncIterator[Serve]:
    """Announce a model with a template of one's own, or with a file of one's own."""
    announced: list[Backend] = []

    async def serve(name: str, template: str | None, *, data: bytes | None = None) -> Backend:
        tokenizer = data or write_tokenizer(tmp_path / f"{name}.gguf", template=template)
        behind = Backend(session_bus, tokenizer, model=name)
        announced.append(behind)
        await behind.start(takes_jobs=False)
        await client.sees(name)
        return behind

    yield serve
    for behind in announced:
        await behind.close()


def tokenizer_of(gateway: GatewayProcess, backend: Backend) -> psutil.Process | None:
    """The tokenizer process of a model; None while it has none."""
    for child in psutil.Process(gateway.pid).children():
        try:
            if child.cmdline()[-1:] == [backend.digest]:
                return child
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


async def tokenizer_pid(gateway: GatewayProcess, backend: Backend) -> int:
    """Its process id, once it has one."""
    await until(lambda: tokenizer_of(gateway, backend) is not None)
    process = tokenizer_of(gateway, backend)
    assert process is not None
    return process.pid


async def works(client: Client, backend: Backend, request_id: str) -> None:
    """A chat with the demo model is answered."""
    stream = client.chat(request_id)
    await backend.finish(await backend.job(request_id), n=1)
    await stream.rest()


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def test_a_template_that_loops_costs_its_own_process_and_no_other(
    client: Client, backend: Backend, serve_model: Serve, gateway: GatewayProcess
) -> None:
    loops = await serve_model("loops", LOOPS)
    await works(client, backend, "text-1")
    before, others = await tokenizer_pid(gateway, loops), await tokenizer_pid(gateway, backend)
    error = await client.chat(model="loops").error()
    assert isinstance(error, InvalidArgument)
    assert (error.reason, error.field) == ("TEXT_TOO_SLOW", "messages")
    await works(client, backend, "text-2")
    assert await tokenizer_pid(gateway, loops) != before
    assert await tokenizer_pid(gateway, backend) == others


async def test_others_are_answered_while_a_template_loops(
    client: Client, backend: Backend, serve_model: Serve
) -> None:
    await serve_model("loops-2", LOOPS)
    slow = [asyncio.create_task(client.chat(model="loops-2").error()) for _ in range(3)]
    streams = [client.chat(f"text-3-{i}") for i in range(10)]
    for i, stream in enumerate(streams):
        await backend.finish(await backend.job(f"text-3-{i}"), n=1)
        await stream.rest()
    assert {error.reason for error in await asyncio.gather(*slow)} == {"TEXT_TOO_SLOW"}


async def test_a_caller_that_leaves_does_not_leave_its_loop_behind(
    client: Client, backend: Backend, serve_model: Serve, gateway: GatewayProcess
) -> None:
    loops = await serve_model("loops-3", LOOPS)
    before = await tokenizer_pid(gateway, loops)

    async def is_gone() -> bool:
        """Leave while it loops. A busy machine may need more than the first attempt to get there."""
        assert (await client.chat(model="loops-3", timeout_s=0.5).error()).code == 4
        return before not in {child.pid for child in psutil.Process(gateway.pid).children()}

    await until(is_gone)
    await works(client, backend, "text-5")


BAD_TEMPLATES = {
    "huge-output": ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "BAD_CHAT_TEMPLATE"),
    "huge-string": ("{{ 'x' * 100000000000 }}", "BAD_CHAT_TEMPLATE"),
    "huge-itself": ("{# " + "x" * (300 << 10) + " #}hello", "BAD_CHAT_TEMPLATE"),
    "no-jinja": ("{% if %}", "BAD_CHAT_TEMPLATE"),
    "breaks": ("{{ messages[0].nothing.at_all }}", "BAD_CHAT_TEMPLATE"),
    "escapes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "BAD_CHAT_TEMPLATE"),
    "refuses": ("{{ raise_exception('system comes first') }}", "REFUSED_BY_CHAT_TEMPLATE"),
    "empty": ("", "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("name", BAD_TEMPLATES)
async def test_bad_templates_are_told_to_the_caller(client: Client, serve_model: Serve, name: str) -> None:
    template, reason = BAD_TEMPLATES[name]
    await serve_model(name, template)
    error = await client.chat(model=name).error()
    assert isinstance(error, InvalidArgument), error
    assert error.field == "messages"
    if name == "empty":  # BOS alone: a prompt of one token, unless the file carries no template at all
        assert error.reason in {"INVALID_ARGUMENT", "NO_CHAT_TEMPLATE"}
    else:
        assert error.reason == reason
    if name == "refuses":
        assert "system comes first" in error.message


async def test_a_model_without_template_is_for_generate(client: Client, serve_model: Serve) -> None:
    await serve_model("plain", None)
    error = await client.chat(model="plain").error()
    assert isinstance(error, InvalidArgument)
    assert error.reason == "NO_CHAT_TEMPLATE"
    assert "Generate" in error.message


async def test_bos_is_put_first_exactly_once(client: Client, serve_model: Serve, backend: Backend) -> None:
    content = inference_pb2.ChatMessage(role="user", content="he")
    await serve_model("bos-1", "{{ messages[0].content }}")
    await serve_model("bos-2", "{{ bos_token }}{{ messages[0].content }}")
    for model in ("bos-1", "bos-2"):
        stream = client.chat(f"text-{model}", model=model, messages=[content])
        job = await backend.job(f"text-{model}")
        assert list(job.prompt_token_ids) == [257, 256]
        await backend.finish(job, n=1)
        await stream.rest()


async def test_a_tokenizer_that_is_none_makes_the_model_unavailable(
    client: Client, backend: Backend, serve_model: Serve
) -> None:
    await serve_model("corrupt", None, data=b"GGUF but not really")
    error = await client.generate(model="corrupt").error()
    assert isinstance(error, Unavailable)
    assert error.reason == "TOKENIZER_FAILED"
    await works(client, backend, "text-6")


async def test_a_vocabulary_that_ends_its_process_disturbs_no_other_model(
    client: Client, backend: Backend, serve_model: Serve, gateway: GatewayProcess
) -> None:
    await works(client, backend, "text-9")
    others = await tokenizer_pid(gateway, backend)
    tokens = texts(bytes([255, i // 256, i % 256]) for i in range(260))
    await serve_model("aborts", None, data=tiny_model().having({"tokenizer.ggml.tokens": tokens}).tokenizer())
    for i in range(5):
        error = await client.generate(model="aborts").error()
        assert isinstance(error, Unavailable)
        assert error.reason == "TOKENIZER_FAILED"
        assert "GGML_ASSERT" in error.message
        await works(client, backend, f"text-9-{i}")
    assert await tokenizer_pid(gateway, backend) == others


async def test_a_killed_tokenizer_process_is_started_again(
    client: Client, backend: Backend, gateway: GatewayProcess
) -> None:
    await works(client, backend, "text-7")
    for i in range(3):
        os.kill(await tokenizer_pid(gateway, backend), signal.SIGKILL)
        await works(client, backend, f"text-8-{i}")


async def test_a_very_long_run_of_one_letter_is_refused_not_tokenized(client: Client) -> None:
    error = await client.generate(text="a" * 400_000, model="demo").error()
    assert isinstance(error, InvalidArgument)
    assert error.field == "text"


async def test_tokenizer_processes_end_with_their_gateway(
    start_gateway: StartGateway, nats_url: str, backend: Backend
) -> None:
    gateway = await start_gateway(nats_url)
    await tokenizer_pid(gateway, backend)
    child = tokenizer_of(gateway, backend)
    assert child is not None
    os.kill(gateway.pid, signal.SIGKILL)
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
