"""Guardrails end to end: prompts and answers, over gRPC and HTTP, through a gateway, policy and Redis."""

# ruff: noqa: RUF001 - letters that look like others are what this is about

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from harness.gateway import Backend, Client, GatewayProcess, Stream, finished, ids_of, text_of, tokens, until
from harness.http_client import HttpClient
from harness.policy import PolicyProcess, bearer
from harness.websocket_client import WebSocket

from inferflux.common.contract.errors import PermissionDenied
from inferflux.v1 import generation_pb2, guardrails_pb2

FILTERED = generation_pb2.FINISH_REASON_CONTENT_FILTER
STOP = generation_pb2.FINISH_REASON_STOP
Blocked = guardrails_pb2.BlockedText


@dataclass(frozen=True)
class Tenant:
    """A tenant of a test's own, and its key."""

    name: str
    secret: str
    policy: PolicyProcess
    admin: str
    gateway: GatewayProcess

    @property
    def client(self) -> Client:
        return Client(self.gateway, self.secret)

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.gateway.http_port, self.secret)

    async def hold(self, *texts: str, model: str = "", **rules: Any) -> None:
        """Set the guardrails of the tenant."""
        given = guardrails_pb2.GuardrailRules(blocked=[Blocked(text=text) for text in texts], **rules)
        made = guardrails_pb2.Guardrails(tenant=self.name, model=model, rules=given)
        await self.policy.stranger.SetGuardrails(
            guardrails_pb2.SetGuardrailsRequest(guardrails=made), metadata=bearer(self.admin), timeout=10
        )

    async def line_of(self, request_id: str) -> dict[str, Any]:
        """The audit line of a request, once it is there."""
        await until(lambda: bool(self.gateway.audit(request_id)))
        (line,) = self.gateway.audit(request_id)
        return line


@pytest.fixture
async def tenant(policy: PolicyProcess, admin_key: str, gateway: GatewayProcess, backend: Backend) -> Tenant:
    name = f"t-{uuid.uuid4().hex[:12]}"
    made = await policy.create_key(admin_key, tenant=name, scopes=("inference", "models"))
    return Tenant(name, made.secret, policy, admin_key, gateway)


CALLED = [
    {"role": "user", "content": "what is 2 + 2?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
        ],
    },
]
RESULT = {"role": "tool", "tool_call_id": "call_1"}
TOOL = {"type": "function", "function": {"name": "add", "description": "Verboten", "parameters": {}}}


async def say(backend: Backend, request_id: str, n: int) -> None:
    """Tokens 0 to n - 1 one by one: their texts are "0 ", "1 ", and so on."""
    job = await backend.job(request_id)
    await backend.say(job, *(tokens(i) for i in range(n)))


async def test_a_refused_prompt_is_not_queued_and_its_audit_line_says_which_rule(
    tenant: Tenant, backend: Backend
) -> None:
    await tenant.hold("harmless", "hell")
    stream = tenant.client.generate("guard-1", text="oh HＥLL no")
    error = await stream.error()
    assert isinstance(error, PermissionDenied)
    assert error.reason == "CONTENT_FILTER"
    assert dict(await stream.call.trailing_metadata())["x-inferflux-guardrail"] == (
        f"{tenant.name}/ blocked[1]"
    )
    line = await tenant.line_of("guard-1")
    assert (line["decision"], line["reason"], line["guardrail"]) == (
        "refused",
        "CONTENT_FILTER",
        f"{tenant.name}/ blocked[1]",
    )
    assert "hell" not in json.dumps(line).casefold().replace("ｅ", "e")
    assert "guard-1" not in backend.jobs


async def test_letters_that_only_look_alike_do_not_hide_a_text_in_a_prompt(tenant: Tenant) -> None:
    await tenant.hold("forbidden")
    looks = "f\N{CYRILLIC SMALL LETTER O}rb\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}dden"
    error = await tenant.client.generate("guard-looks", text=f"it is {looks}").error()
    assert error.reason == "CONTENT_FILTER"


async def test_token_ids_do_not_go_round_guardrails(tenant: Tenant) -> None:
    await tenant.hold("hello world")
    answer = await tenant.http.post("/v1/tokenize", {"model": "demo", "prompt": "say hello world"})
    ids = answer.json()["tokens"]
    error = await tenant.client.generate("guard-2", token_ids={"ids": ids}).error()
    assert error.reason == "CONTENT_FILTER"


async def test_the_texts_of_a_chat_are_held_to_guardrails_over_http(tenant: Tenant) -> None:
    await tenant.hold("verboten")
    messages = [{"role": "user", "content": "it is Verboten"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/completions", {"prompt": "it is Verboten"}),
        ("/v1/responses", {"input": "it is Verboten"}),
        ("/generate", {"prompt": "it is Verboten"}),
        ("/v1/chat/completions", {"messages": [*CALLED, {**RESULT, "content": "a result: VERBOTEN"}]}),
        ("/v1/chat/completions", {"messages": [*CALLED, {**RESULT, "content": "4"}], "tools": [TOOL]}),
    ):
        refused = await tenant.http.post(path, {"model": "demo"} | body)
        assert refused.status == 403
        assert refused.error["code"] == "content_filter"
        assert refused.headers["x-inferflux-guardrail"] == f"{tenant.name}/ blocked[0]"


async def test_sizes_of_prompts_are_held_to(tenant: Tenant, backend: Backend) -> None:
    await tenant.hold(max_tokens=3)
    error = await tenant.client.generate("guard-3", token_ids={"ids": [1, 2, 3, 4]}).error()
    assert (error.reason, "at most 3 tokens" in error.message) == ("PROMPT_TOO_LARGE", True)
    stream = tenant.client.generate("guard-4", token_ids={"ids": [1, 2, 3]})
    await backend.finish(await backend.job("guard-4"), n=1)
    await stream.rest()


async def test_other_tenants_and_models_are_not_held_to_it(
    tenant: Tenant, client: Client, backend: Backend
) -> None:
    await tenant.hold("hello", model="big")
    for request_id, caller in (("guard-5", tenant.client), ("guard-6", client)):
        stream = caller.generate(request_id, text="hello")
        await backend.finish(await backend.job(request_id), n=1)
        await stream.rest()


@pytest.mark.parametrize("window_s", [0, 30])
async def test_an_answer_ends_before_what_is_blocked_and_its_job_is_cancelled(
    tenant: Tenant, backend: Backend, window_s: int
) -> None:
    await tenant.hold("4 5", guards_stream=True)
    request_id = f"guard-stream-{window_s}-{tenant.name}"  # another one at a second try
    stream = tenant.client.generate(request_id, resume_window_s=window_s)
    await say(backend, request_id, 8)
    chunks = await stream.rest()
    assert text_of(chunks) == "0 1 2 3 "
    assert ids_of(chunks) == [0, 1, 2]
    assert chunks[-1].finished.reason == FILTERED
    assert chunks[-1].finished.usage.completion_tokens == 8
    await until(lambda: request_id in backend.cancelled)
    await backend.say(
        await backend.job(request_id), finished(8, reason=generation_pb2.FINISH_REASON_CANCELLED)
    )
    line = await tenant.line_of(request_id)
    assert (line["decision"], line["outcome"], line["guardrail"]) == (
        "allowed",
        "content_filter",
        f"{tenant.name}/ blocked[0]",
    )
    assert line["completion_tokens"] == 8
    await backend.done(request_id)


async def test_an_answer_with_nothing_blocked_is_given_as_it_is(
    tenant: Tenant, client: Client, backend: Backend
) -> None:
    await tenant.hold("no such text", patterns=["x{5}"], guards_stream=True)
    said = []
    for request_id, caller in (("guard-7", tenant.client), ("guard-8", client)):
        stream = caller.generate(request_id)
        await backend.finish(await backend.job(request_id), n=9)
        chunks = await stream.rest()
        said.append((text_of(chunks), ids_of(chunks), chunks[-1].finished))
    assert said[0] == said[1]
    assert said[0][0] == "0 1 2 3 4 5 6 7 8 "


async def test_what_cannot_be_blocked_any_more_is_not_held_back(tenant: Tenant, backend: Backend) -> None:
    await tenant.hold("4 5", guards_stream=True)
    stream = tenant.client.generate("guard-9")
    await say(backend, "guard-9", 3)
    chunks = [await stream.until_tokens()]
    while ids_of(chunks)[-1] < 1:
        chunks.append(await stream.next())
    stream.cancel()


async def test_an_answer_that_is_resumed_is_held_to_guardrails_from_its_first_token(
    tenant: Tenant, backend: Backend
) -> None:
    await tenant.hold("4 5", guards_stream=True)
    stream = tenant.client.generate("guard-10", resume_window_s=60)
    job = await backend.job("guard-10")
    backend.known.add("guard-10")
    await backend.say(job, *(tokens(i) for i in range(3)))
    await stream.until_tokens()
    stream.cancel()
    await backend.say(job, *(tokens(i) for i in range(3, 7)), finished(7, attempt=job.attempt_id))
    await backend.done("guard-10")
    for offset, text in ((0, "0 1 2 3 "), (2, "2 3 ")):
        chunks = await _resumed(tenant, offset)
        assert text_of(chunks) == text
        assert chunks[-1].finished.reason == FILTERED


async def _resumed(tenant: Tenant, offset: int) -> list[Any]:
    stream: Stream = tenant.client.resume("guard-10", offset)
    return await stream.rest()


async def test_over_http_the_finish_reason_is_content_filter(tenant: Tenant, backend: Backend) -> None:
    await tenant.hold("2 3", guards_stream=True)
    cases: list[tuple[str, dict[str, Any], Callable[[Any], tuple[str, str]]]] = [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hello"}]},
            lambda a: (a["choices"][0]["finish_reason"], a["choices"][0]["message"]["content"]),
        ),
        (
            "/v1/completions",
            {"prompt": "hello"},
            lambda a: (a["choices"][0]["finish_reason"], a["choices"][0]["text"]),
        ),
        (
            "/v1/responses",
            {"input": "hello"},
            lambda a: (a["incomplete_details"]["reason"], a["output"][0]["content"][0]["text"]),
        ),
        ("/generate", {"prompt": "hello", "stream": False}, lambda a: (a["finish_reason"], a["text"])),
    ]
    for path, body, told in cases:
        answer = await _posted(tenant, backend, path, {"model": "demo"} | body)
        assert told(answer) == ("content_filter", "0 1 ")


async def _posted(tenant: Tenant, backend: Backend, path: str, body: dict[str, Any]) -> Any:
    """The answer to a POST, for which the backend says "0 1 2 3 4 "."""
    request_id = f"guard-{uuid.uuid4().hex[:8]}"
    asked = asyncio.create_task(tenant.http.post(path, body, **{"x-request-id": request_id}))
    await say(backend, request_id, 5)
    answer = await asked
    assert answer.status == 200
    await backend.done(request_id)
    return answer.json()


async def test_over_a_websocket_too(tenant: Tenant, backend: Backend) -> None:
    await tenant.hold("2 3", guards_stream=True)
    async with WebSocket(tenant.gateway.http_port, key=tenant.secret) as socket:
        socket.send({"model": "demo", "prompt": "hello"})
        request_id = (await socket.next())["request_id"]
        await say(backend, request_id, 5)
        told = await socket.until_end()
    assert told[-1]["finish_reason"] == "content_filter"
    assert "".join(each.get("text", "") for each in told) == "0 1 "
    await backend.done(request_id)
