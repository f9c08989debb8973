"""Decision backends behind a gateway: what they are told of calls, and what clients are told of refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from harness.gateway import Backend, Client, GatewayProcess, until
from harness.http_client import HttpClient
from harness.opa import OpaServer, response, saying, serving
from harness.policy import PolicyProcess

from inferflux.common.contract.errors import PermissionDenied

REASON = "opa: not this one"


async def but_not_forbidden(about: dict[str, Any]) -> bytes:
    """Permits all but prompts with `forbidden` in them, and lists of models."""
    allow = "forbidden" not in about.get("text", "") and about["method"] != "ModelService/ListModels"
    return response(json.dumps({"result": {"allow": allow, "reason": "not this one"}}).encode())


@dataclass(frozen=True)
class Stack:
    opa: OpaServer
    gateway: GatewayProcess
    secret: str
    key_id: str

    @property
    def client(self) -> Client:
        return Client(self.gateway, self.secret)

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.gateway.http_port, self.secret)

    async def line_of(self, request_id: str) -> dict[str, Any]:
        """The audit line of a request, once it is there."""
        await until(lambda: bool(self.gateway.audit(request_id)))
        (line,) = self.gateway.audit(request_id)
        return line


@pytest.fixture(scope="module")
async def decided(
    tmp_path_factory: pytest.TempPathFactory,
    nats_url: str,
    valkey_url: str,
    admin_key: str,
    backend: Backend,
) -> AsyncIterator[Stack]:
    """A gateway whose policy asks OPA, texts and all."""
    folder = tmp_path_factory.mktemp("decided")
    async with serving(saying(result=True)) as opa:
        policy = PolicyProcess(
            folder,
            valkey_url,
            INFERFLUX_POLICY_BOOTSTRAP_KEY=admin_key,
            INFERFLUX_POLICY_DECISIONS="builtin,opa",
            INFERFLUX_POLICY_OPA_URL=opa.url,
            INFERFLUX_POLICY_OPA_SEES_TEXT="true",
            # What was permitted before a test changes OPA's answer is not to hold in it.
            INFERFLUX_POLICY_DECISION_CACHE_S="0",
            INFERFLUX_HTTP_ALLOWED_NETWORKS="127.0.0.1",
        )
        gateway = GatewayProcess(folder, nats_url, f"127.0.0.1:{policy.port}")
        policy.start()
        try:
            await policy.wait_ready()
            made = await policy.create_key(admin_key, tenant="decided", scopes=("inference", "models"))
            gateway.start()
            await gateway.wait_ready()
            await Client(gateway, made.secret).sees(backend.card.name)
            opa.answer = but_not_forbidden
            yield Stack(opa, gateway, made.secret, made.api_key.key_id)
        finally:
            await gateway.close()
            await policy.close()


async def test_a_request_is_asked_about_with_its_method_and_then_with_its_model_priority_and_text(
    decided: Stack, backend: Backend
) -> None:
    decided.opa.inputs.clear()
    stream = decided.client.generate("decided-1", text="hello", priority=100, params={"max_tokens": 7})
    job = await backend.job("decided-1")
    await backend.finish(job, n=1)
    await stream.rest()
    (admitted,), (reserved,) = decided.opa.of_step("admit"), decided.opa.of_step("reserve")
    who = {
        "tenant": "decided",
        "key_id": decided.key_id,
        "scopes": ["inference", "models"],
        "roles": [],
        "issuer": "",
        "subject": "",
    }
    method = "InferenceService/Generate"
    assert admitted == {"step": "admit", "method": method, "scope": "inference", **who}
    assert reserved == {
        "step": "reserve",
        "method": method,
        **who,
        "model": "demo",
        "priority": 4,
        "prompt_tokens": len(job.prompt_token_ids),
        "max_tokens": 7,
        "text": "hello",
    }


async def test_a_refused_request_is_not_queued_and_its_audit_line_says_who_refused_and_why(
    decided: Stack, backend: Backend
) -> None:
    stream = decided.client.generate("decided-2", text="a forbidden text")
    error = await stream.error()
    assert isinstance(error, PermissionDenied)
    assert (error.reason, error.message) == ("DECISION_DENIED", REASON)
    assert dict(await stream.call.trailing_metadata())["x-inferflux-decision"] == REASON
    line = await decided.line_of("decided-2")
    assert (line["decision"], line["reason"], line["decided_by"]) == ("refused", "DECISION_DENIED", REASON)
    assert "decided-2" not in backend.jobs


async def test_a_call_that_is_refused_before_its_body_is_read_has_the_same_line(decided: Stack) -> None:
    with pytest.raises(Exception, match="not this one"):
        await decided.client.model_names()

    def refused() -> list[dict[str, Any]]:
        return [line for line in decided.gateway.audit() if line["method"] == "ListModels"]

    await until(lambda: any(line.get("decided_by") == REASON for line in refused()))
    assert {line["key_id"] for line in refused()} == {decided.key_id}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "forbidden"}]}),
        ("/v1/completions", {"prompt": "forbidden"}),
        ("/v1/responses", {"input": "forbidden"}),
        ("/generate", {"prompt": "forbidden"}),
    ],
)
async def test_over_http_the_route_is_told_and_a_refusal_is_a_403_with_its_reason(
    decided: Stack, path: str, body: dict[str, Any]
) -> None:
    decided.opa.inputs.clear()
    refused = await decided.http.post(path, {"model": "demo"} | body)
    assert refused.status == 403
    assert refused.error["message"] == REASON
    assert refused.error["code"] == "decision_denied"
    assert refused.headers["x-inferflux-decision"] == REASON
    assert {each["method"] for each in decided.opa.inputs} == {f"POST {path}"}
