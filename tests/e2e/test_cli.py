"""inferctl before a running stack, as people use it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from harness.inferctl import Terminal, run

from inferflux.cli.reach.client import Client
from inferflux.cli.stack import Stack
from inferflux.v1 import cluster_pb2

pytestmark = pytest.mark.e2e

QUESTION = "What is the capital of France?"
# Keys typed before it are the terminal's, not the prompt's.
PROMPT = r"\s+> "
GREEDY = ("--temperature", "0")


@pytest.fixture
def env(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """Points inferctl at the shared stack."""
    return {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


def running_ids(status: cluster_pb2.GetStatusResponse) -> set[str]:
    return {slot.request_id for worker in status.scheduler.workers for slot in worker.slots}


async def test_a_question_is_answered_on_stdout(env: dict[str, str]) -> None:
    result = await run("chat", *GREEDY, QUESTION, env=env)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [(), ("-",)])
async def test_a_question_can_be_piped_in(env: dict[str, str], arguments: tuple[str, ...]) -> None:
    asked = await run("chat", *GREEDY, QUESTION, env=env)
    piped = await run("chat", *GREEDY, *arguments, env=env, stdin=QUESTION)
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == asked.stdout


async def test_json_tells_the_answer_and_its_figures(env: dict[str, str]) -> None:
    result = await run("chat", "--json", "--request-id", "json-1", "--max-tokens", "3", QUESTION, env=env)
    answer = json.loads(result.stdout)
    assert answer["request_id"] == "json-1"
    assert answer["completion_tokens"] == 3
    assert answer["finish_reason"] == "length"
    assert answer["ttft_ms"] > 0


async def test_stats_go_to_stderr(env: dict[str, str]) -> None:
    result = await run("chat", *GREEDY, "--stats", "--max-tokens", "5", "Tell me a story.", env=env)
    assert "5 tokens · first after" in result.stderr
    assert "tokens/s" not in result.stdout


async def test_the_same_seed_gives_the_same_answer(env: dict[str, str]) -> None:
    arguments = ("chat", "--temperature", "1.5", "--seed", "7", "--max-tokens", "20", "Tell me a story.")
    first, second = await run(*arguments, env=env), await run(*arguments, env=env)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


async def test_a_text_is_continued_without_a_template(env: dict[str, str]) -> None:
    result = await run("complete", *GREEDY, "--max-tokens", "8", "--json", "one two three", env=env)
    answer = json.loads(result.stdout)
    assert answer["completion_tokens"] == 8
    assert 0 < answer["prompt_tokens"] < 20


async def test_models_lists_the_demo_model(env: dict[str, str], stack: Stack) -> None:
    result = await run("models", env=env)
    assert stack.model_name in result.stdout
    listed = json.loads((await run("models", "--json", env=env)).stdout)
    assert [model["card"]["name"] for model in listed] == [stack.model_name]
    assert listed[0]["workers"] == 1
    shown = await run("models", "show", stack.model_name, env=env)
    assert "constraints, speculation" in shown.stdout
    said = json.loads((await run("models", "show", stack.model_name, "--json", env=env)).stdout)
    assert Path(said["places"][0]["path"]).name == "inferflux-demo.gguf"
    assert (await run("models", "show", "none", env=env)).returncode != 0


async def test_status_shows_every_service_and_the_worker(env: dict[str, str]) -> None:
    result = await run("status", env=env)
    assert result.returncode == 0, result.stderr
    assert "worker-0" in result.stdout
    assert "policy priority · preemption from priority 5 · no timeslice" in result.stdout
    status = json.loads((await run("status", "--json", env=env)).stdout)
    ready = {service["name"]: service["is_ready"] for service in status["services"]}
    assert ready == dict.fromkeys(("gateway", "policy", "scheduler", "nats", "redis"), True)
    (worker,) = status["scheduler"]["workers"]
    assert worker["status"]["slots"] == 16
    assert len(worker["slots"]) == worker["status"]["slots"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chat", "--api-key", "ifx_wrong", "hi"), "key"),
        (("chat", "--model", "inferflux-demo:unknown", "hi"), "unknown"),
        (("chat", "--top-p", "2", "hi"), "top_p"),
        (("chat", "--request-id", "a b", "hi"), "x-request-id"),
        (("cancel", "unknown-request"), "unknown-request"),
        (("models", "--endpoint", "127.0.0.1:1"), "nothing answers at 127.0.0.1:1"),
    ],
)
async def test_what_fails_is_one_line_and_status_1(
    env: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    result = await run(*arguments, env=env)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("inferctl: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


async def test_wrong_usage_is_status_2(env: dict[str, str]) -> None:
    assert (await run("chat", "--max-tokens", "many", "hi", env=env)).returncode == 2
    assert (await run("nonsense", env=env)).returncode == 2


async def test_a_running_request_is_cancelled_by_its_id(env: dict[str, str], stack: Stack) -> None:
    long = ("--ignore-eos", "--max-tokens", "1900", "--json")
    asking = asyncio.create_task(run("chat", *long, "--request-id", "long-1", "Hello", env=env))
    async with Client(stack.target) as client:
        while "long-1" not in running_ids(await client.status()):
            assert not asking.done(), asking.result()
    assert (await run("cancel", "long-1", env=env)).stdout == "cancelled long-1\n"
    ended = await asking
    assert ended.returncode == 130
    answer = json.loads(ended.stdout)
    assert answer["finish_reason"] == "cancelled"
    assert answer["completion_tokens"] < 1900


async def test_a_conversation_at_the_terminal(env: dict[str, str]) -> None:
    async with Terminal("chat", *GREEDY, "--stats", env=env) as terminal:
        await terminal.see(f"Ctrl-D leaves{PROMPT}")
        terminal.type(f"{QUESTION}\r")
        await terminal.see(rf"tokens · first after .*{PROMPT}")
        terminal.type("/system Be brief.\r")
        await terminal.see(f"system message set{PROMPT}")
        terminal.type("/what\r")
        await terminal.see(rf"there is no /what(.|\n)*cancel the answer{PROMPT}")
        terminal.type("\x04")
        assert await terminal.exit_status() == 0


async def test_ctrl_c_cancels_the_answer_and_the_conversation_goes_on(
    env: dict[str, str], stack: Stack
) -> None:
    async with Terminal("chat", "--ignore-eos", "--max-tokens", "1900", env=env) as terminal:
        await terminal.see(f"Ctrl-D leaves{PROMPT}")
        terminal.type("Tell me a short story about a fox.\r")
        await terminal.see(r"fox\. *\n\s*[^\s>]")
        terminal.press_ctrl_c()
        await terminal.see(f"cancelled{PROMPT}")
        terminal.type("/reset\r")
        await terminal.see(f"forgotten{PROMPT}")
        terminal.type("\x04")
        assert await terminal.exit_status() == 0


async def test_a_question_that_ctrl_c_ends_says_so_and_exits_with_130(env: dict[str, str]) -> None:
    question = "Tell me a short story about a fox."
    async with Terminal("chat", "--ignore-eos", "--max-tokens", "1900", question, env=env) as terminal:
        await terminal.see(r"\w+ \w+")
        terminal.press_ctrl_c()
        await terminal.see("cancelled")
        assert await terminal.exit_status() == 130


async def test_an_answer_that_reaches_its_limit_says_so(env: dict[str, str]) -> None:
    result = await run("chat", *GREEDY, "--max-tokens", "3", QUESTION, env=env)
    assert result.returncode == 0
    assert "cut after 3 tokens" in result.stderr


async def test_no_proxy_of_the_environment_is_asked_for_a_gateway(env: dict[str, str]) -> None:
    names = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    nowhere = dict.fromkeys(names, "http://127.0.0.1:9")
    result = await run("chat", *GREEDY, QUESTION, env=env | nowhere)
    assert "Paris" in result.stdout, result.stderr


async def test_what_was_typed_is_there_the_next_time(env: dict[str, str]) -> None:
    for keys in ("/reset\r", "\x1b[A\r"):  # the second time: up, enter
        async with Terminal("chat", env=env) as terminal:
            await terminal.see(f"Ctrl-D leaves{PROMPT}")
            terminal.type(keys)
            await terminal.see(f"forgotten{PROMPT}")
            terminal.type("\x04")
            assert await terminal.exit_status() == 0


async def test_doctor_finds_no_problem_with_a_stack_that_runs(stack: Stack) -> None:
    result = await run("doctor", "--json", "--state-dir", str(stack.state_dir.path), env={})
    findings = json.loads(result.stdout)
    assert [one for one in findings if one["level"] == "problem"] == []
    assert result.returncode == 0
    ports = [one["said"] for one in findings if one["check"] == "ports"]
    assert any(stack.endpoint in said and "pid" in said for said in ports)
    levels = {one["level"] for one in findings if one["check"] in ("nats", "redis", "clock")}
    assert levels == {"ok"}
    shown = await run("doctor", "--state-dir", str(stack.state_dir.path), env={})
    assert "0 problems" in shown.stdout
    assert not [
        secret for secret in (stack.api_key, stack.nats_url, stack.redis_url) if secret in shown.stdout
    ]
