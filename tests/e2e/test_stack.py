"""`inferctl up` and `inferctl demo` from their start to their end, and what goes wrong between."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest
from harness.gguf_files import texts, tiny_model, u32
from harness.inferctl import Terminal, all_gone, marked, run

pytestmark = pytest.mark.e2e

ANY_PORTS = (
    *("--gateway-port", "0"),
    *("--http-port", "0"),
    *("--policy-port", "0"),
    *("--nats-port", "0"),
    *("--redis-port", "0"),
)

ASKED = ("--temperature", "0", "What is the capital of France?")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def env(state_dir: Path) -> dict[str, str]:
    return {"INFERFLUX_STATE_DIR": str(state_dir), "INFERFLUX_DRAIN_LIMIT_S": "10"}


def up(*arguments: str, env: dict[str, str], model: Path) -> Terminal:
    return Terminal("up", "--model", str(model), *ANY_PORTS, *arguments, env=env)


async def test_up_serves_until_ctrl_c_and_leaves_no_process(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("InferFlux is up")
        await terminal.see(r"API key +ifx_[\w-]{43}")
        await terminal.see("Ctrl-C ends it")
        state = json.loads((state_dir / "stack.json").read_text())
        assert set(state["processes"]) == {"nats", "valkey", "policy", "scheduler", "worker-0", "gateway"}
        answer = await run("chat", *ASKED, env=env)
        assert answer.stdout.strip(), answer.stderr
        status = await run("status", env=env)
        assert "worker-0" in status.stdout, status.stderr

        terminal.press_ctrl_c()
        await terminal.see("gateway ended")
        await terminal.see("nats ended")
        assert await terminal.exit_status() == 0
    await all_gone(state_dir)
    for pid in state["processes"].values():
        assert not psutil.pid_exists(pid)
    assert not (state_dir / "stack.json").exists()
    assert "inferctl up" in (await run("chat", "hi", env=env)).stderr


@pytest.mark.long
async def test_the_key_stays_the_same_over_restarts(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    keys = []
    for _ in range(2):
        async with up(env=env, model=demo_model) as terminal:
            keys.append(await terminal.see(r"ifx_[\w-]{43}"))
            await terminal.see("Ctrl-C ends it")
            assert (await run("models", env=env)).returncode == 0
            terminal.press_ctrl_c()
            assert await terminal.exit_status() == 0
    assert keys[0] == keys[1]
    assert (state_dir / "bootstrap.key").stat().st_mode & 0o777 == 0o600


async def test_up_names_a_misspelt_variable_and_takes_the_disk_folder_it_is_given(
    demo_model: Path, state_dir: Path, env: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    own = {"INFERFLUX_WORKER_DISK_PATH": str(folder), "INFERFLUX_WORKER_PREFIX_CASHE": "false"}
    async with up(env={**env, **own}, model=demo_model) as terminal:
        await terminal.see("INFERFLUX_WORKER_PREFIX_CASHE is ignored: .* INFERFLUX_WORKER_PREFIX_CACHE")
        await terminal.see("Ctrl-C ends it")
        assert (folder / "0").is_dir()
        assert not (state_dir / "kv").exists()


@pytest.mark.long
async def test_a_second_up_is_told_of_the_first(demo_model: Path, env: dict[str, str]) -> None:
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("nats")
        second = await run("up", "--model", str(demo_model), *ANY_PORTS, env=env)
        assert second.returncode == 1
        assert f"pid {terminal.process.pid}" in second.stderr
        assert second.stderr.count("\n") == 1
        await terminal.see("Ctrl-C ends it")


async def test_a_taken_port_is_named_and_nothing_starts(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = await run("up", "--model", str(demo_model), *ANY_PORTS, "--gateway-port", port, env=env)
    assert result.returncode == 1
    assert result.stderr == (
        f"inferctl: port {port} is taken: choose another with --gateway-port (0: any free one), "
        "or --free-ports\n"
    )
    assert marked(state_dir) == []


@pytest.fixture
def broken(demo_model: Path, tmp_path: Path) -> Path:
    """The first half of a model."""
    path = tmp_path / "broken.gguf"
    whole = demo_model.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


async def test_a_model_that_is_cut_off_is_named_and_everything_ends(
    broken: Path, state_dir: Path, env: dict[str, str]
) -> None:
    result = await run("up", "--model", str(broken), *ANY_PORTS, env=env)
    assert result.returncode == 1
    assert result.stderr.startswith(f"inferctl: worker-0 could not start: {broken}: ")
    assert result.stderr.count("\n") == 1
    await all_gone(state_dir)


HOSTILE = {
    "a context length of 2^31": (
        tiny_model().having({"llama.context_length": u32(2**31)}),
        "llama.context_length is 2147483648: it must be 2 to 2147483647",
    ),
    "a vocabulary that ends llama.cpp": (
        tiny_model().having(
            {"tokenizer.ggml.tokens": texts(bytes([255, i // 256, i % 256]) for i in range(260))}
        ),
        "GGML_ASSERT",
    ),
    "weights of nan": (tiny_model().filled(math.nan), "the model gives no finite logits"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_model_is_refused_in_one_line(
    tmp_path: Path, state_dir: Path, env: dict[str, str], name: str
) -> None:
    file, why = HOSTILE[name]
    path = file.write(tmp_path / "hostile.gguf")
    result = await run("up", "--model", str(path), *ANY_PORTS, env=env)
    assert result.returncode == 1
    assert result.stderr.startswith(f"inferctl: worker-0 could not start: {path}: ")
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
    await all_gone(state_dir)


@pytest.mark.long
async def test_a_process_that_dies_while_starting_is_shown_with_its_last_words(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    result = await run(
        "up", "--model", str(demo_model), *ANY_PORTS, env={**env, "INFERFLUX_QUEUE_LIMIT": "many"}
    )
    assert result.returncode == 1
    assert "INFERFLUX_QUEUE_LIMIT" in result.stderr
    assert re.search(r"inferctl: \S+ exited with status 2 while starting", result.stderr)
    await all_gone(state_dir)


async def test_ctrl_c_while_starting_ends_everything(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("policy")
        terminal.press_ctrl_c()
        assert await terminal.exit_status() == 130
    await all_gone(state_dir)


@pytest.mark.long
async def test_a_second_ctrl_c_ends_at_once(demo_model: Path, state_dir: Path, env: dict[str, str]) -> None:
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("Ctrl-C ends it")
        gateway = json.loads((state_dir / "stack.json").read_text())["processes"]["gateway"]
        os.kill(gateway, signal.SIGSTOP)  # it will not drain
        terminal.press_ctrl_c()
        await terminal.see("Ctrl-C again")
        terminal.press_ctrl_c()
        assert await terminal.exit_status(5.0) == 130
    await all_gone(state_dir)


async def test_nothing_outlives_a_supervisor_that_was_killed(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("Ctrl-C ends it")
        terminal.process.kill()
        await all_gone(state_dir)
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("InferFlux is up")
        terminal.press_ctrl_c()
        assert await terminal.exit_status() == 0


async def test_a_worker_that_dies_is_started_again(
    demo_model: Path, state_dir: Path, env: dict[str, str]
) -> None:
    async with up(env=env, model=demo_model) as terminal:
        await terminal.see("Ctrl-C ends it")
        answer = await run("chat", *ASKED, env=env)
        assert answer.stdout.strip(), answer.stderr
        before = json.loads((state_dir / "stack.json").read_text())["processes"]["worker-0"]
        os.kill(before, signal.SIGKILL)
        await terminal.see("worker-0 was ended by SIGKILL; starting it again")
        await terminal.see("worker-0 is back")
        after = json.loads((state_dir / "stack.json").read_text())["processes"]["worker-0"]
        assert after != before
        assert (await run("chat", *ASKED, env=env)).stdout == answer.stdout
        children = psutil.Process(after).children()
        (engine,) = (child for child in children if "inferflux.worker.engine" in child.cmdline())
        engine.kill()
        await terminal.see("worker-0 starts its engine again, which died")
        await terminal.see("worker-0 is back")


async def test_the_demo_streams_an_answer_and_leaves_nothing(demo_model: Path, tmp_path: Path) -> None:
    aside = tmp_path / "tmp"
    aside.mkdir()
    result = await run("demo", "--model", str(demo_model), env={"TMPDIR": str(aside)})
    assert result.returncode == 0, result.stderr
    assert re.search(r"time to first token \d+ ms +then \d+ tokens/s", result.stdout)
    assert list(aside.iterdir()) == []
    await all_gone(aside)


@pytest.mark.long
async def test_two_demos_at_once_do_not_meet(demo_model: Path, tmp_path: Path) -> None:
    both = await asyncio.gather(
        *(run("demo", "--model", str(demo_model), env={"TMPDIR": str(tmp_path)}) for _ in range(2))
    )
    assert [result.returncode for result in both] == [0, 0], [result.stderr for result in both]


def test_inferctl_is_installed_beside_python() -> None:
    assert (Path(sys.executable).parent / "inferctl").exists()
