"""OpenAI's npm client, unmodified, against the whole stack and the demo model."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from harness import audit, npm
from harness.client import MODEL, Client

from inferflux.cli.stack import Stack

# The first test waits for npm too.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.long]

FOLDER = Path(__file__).parent / "openai_npm"


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script beside the packages that it imports."""
    try:
        place = npm.installed(FOLDER)
    except npm.CannotInstall as reason:
        pytest.skip(f"OpenAI's npm client cannot be installed: {reason}")
    folder = tmp_path_factory.mktemp("openai-npm")
    (folder / "node_modules").symlink_to(place / "node_modules")
    return Path(shutil.copy(FOLDER / "sdk.mjs", folder))


class Node:
    """Runs cases of the script against a stack."""

    def __init__(self, script: Path, stack: Stack) -> None:
        self._script = script
        self._env = {
            "OPENAI_BASE_URL": f"{stack.http_url}/v1",
            "OPENAI_API_KEY": stack.api_key,
            "MODEL": MODEL,
            "NO_PROXY": "127.0.0.1",
        }

    def start(self, case: str, request_id: str = "") -> npm.Script:
        return npm.Script(self._script, case, env=self._env | {"REQUEST_ID": request_id})

    async def run(self, case: str) -> Any:
        async with self.start(case) as running:
            return await running.said()


@pytest.fixture
def node(script: Path, stack: Stack) -> Node:
    return Node(script, stack)


async def test_npm_reads_a_chat_and_its_stream_alike(node: Node) -> None:
    whole = await node.run("chat")
    chunks = await node.run("stream")
    (choice,) = whole["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert len(deltas) > 2
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] > 0


async def test_npm_calls_a_tool_and_goes_on_with_its_result(node: Node) -> None:
    got = await node.run("tools")
    (choice,) = got["called"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    check_call(choice["message"]["tool_calls"])
    assert got["answered"]["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
    assert got["answered"]["usage"]["prompt_tokens"] > got["called"]["usage"]["prompt_tokens"]


async def test_npm_puts_a_streamed_call_together(node: Node) -> None:
    got = await node.run("tools_stream")
    (choice,) = got["final"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    check_call(choice["message"]["tool_calls"])
    deltas = [chunk["choices"][0]["delta"] for chunk in got["chunks"]]
    parts = [call["function"].get("arguments") for delta in deltas for call in delta.get("tool_calls") or ()]
    assert len([part for part in parts if part]) > 1
    whole = (await node.run("tools"))["called"]["choices"][0]["message"]["tool_calls"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == whole[0]["function"]["arguments"]


async def test_npm_parses_an_answer_of_its_schema(node: Node) -> None:
    (choice,) = (await node.run("json_schema"))["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["parsed"] in ({"city": "Paris"}, {"city": "Rome"})


async def test_npm_reads_a_response_and_its_events(node: Node) -> None:
    got = await node.run("responses")
    assert "Paris" in got["whole"]["output_text"]
    assert got["whole"]["status"] == "completed"
    deltas = [event["delta"] for event in got["events"] if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == got["final"]["output_text"] == got["whole"]["output_text"]
    assert got["events"][-1]["type"] == "response.completed"


async def test_npm_reads_a_response_that_calls(node: Node) -> None:
    got = await node.run("responses_tools")
    for (item,) in (got["whole"]["output"], got["final"]["output"]):
        assert (item["type"], item["name"]) == ("function_call", "weather")
        assert json.loads(item["arguments"]) in ({"city": "Paris"}, {"city": "Rome"})
    assert "response.function_call_arguments.delta" in [event["type"] for event in got["events"]]


async def test_npm_lists_and_finds_models(node: Node) -> None:
    got = await node.run("models")
    assert MODEL in [model["id"] for model in got["listed"]]
    assert got["one"]["id"] == MODEL


async def test_npm_raises_its_own_errors(node: Node) -> None:
    got = await node.run("errors")
    raised = {case: (error["name"], error["status"]) for case, error in got.items()}
    assert raised == {
        "wrong_key": ("AuthenticationError", 401),
        "bad_value": ("BadRequestError", 400),
        "bad_value_of_a_stream": ("BadRequestError", 400),
        "unknown_model": ("NotFoundError", 404),
    }
    assert got["wrong_key"]["code"] == "invalid_api_key"
    assert got["bad_value"]["param"] == "temperature"
    assert got["bad_value_of_a_stream"]["param"] == "top_p"
    assert got["unknown_model"]["code"] == "unknown_adapter"


async def test_npm_aborts_a_stream_and_its_slot_is_free(node: Node, client: Client, stack: Stack) -> None:
    request_id = f"npm-{uuid.uuid4().hex}"
    async with node.start("abort_stream", request_id) as running:
        assert (await running.said())["chunks"] >= 3
        await client.until_idle()
        assert running.is_running
        assert await audit.outcome_of(stack, request_id) == "cancelled"


async def test_npm_aborts_a_whole_answer_and_its_slot_is_free(
    node: Node, client: Client, stack: Stack
) -> None:
    request_id = f"npm-{uuid.uuid4().hex}"
    async with node.start("abort_whole", request_id) as running:
        await client.until_status(lambda s: s.scheduler.running == 1)
        running.tell()
        assert (await running.said())["name"] == "APIUserAbortError"
        await client.until_idle()
        assert running.is_running
        assert await audit.outcome_of(stack, request_id) == "cancelled"


def check_call(calls: list[Any]) -> None:
    """One call of the weather tool, with arguments of its schema."""
    (call,) = calls
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) in ({"city": "Paris"}, {"city": "Rome"})
