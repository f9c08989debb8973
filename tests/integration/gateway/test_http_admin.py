"""What administrators call over HTTP: the same as over gRPC, with messages as JSON."""

from __future__ import annotations

import pytest
from harness.gateway import Backend, GatewayProcess, until
from harness.http_client import HttpClient
from harness.policy import PolicyProcess
from harness.scripted_admin import ScriptedAdmin


@pytest.fixture
def admin(gateway: GatewayProcess, admin_key: str) -> HttpClient:
    return HttpClient(gateway.http_port, admin_key)


async def test_a_keys_life(admin: HttpClient, policy: PolicyProcess) -> None:
    body = {
        "tenant": "http-admin",
        "name": "ci",
        "scopes": ["inference"],
        "expires_at": "2099-01-01T00:00:00Z",
    }
    made = await admin.post("/v1/admin/CreateApiKey", body)
    assert made.status == 200
    secret, key_id = made.json()["secret"], made.json()["api_key"]["key_id"]
    assert (await policy.admit(secret)).key_id == key_id
    change = {"api_key": {"key_id": key_id, "max_priority": 9}, "update_mask": "maxPriority,expiresAt"}
    changed = (await admin.post("/v1/admin/UpdateApiKey", change)).json()["api_key"]
    assert (changed["max_priority"], changed.get("expires_at")) == (9, None)
    listed = (await admin.post("/v1/admin/ListApiKeys", {"tenant": "http-admin"})).json()["api_keys"]
    assert [key["key_id"] for key in listed] == [key_id]
    assert secret not in str(listed)
    assert (await admin.post("/v1/admin/RevokeApiKey", {"key_id": key_id})).json() == {}
    again = await admin.post("/v1/admin/RevokeApiKey", {"key_id": key_id})
    assert (again.status, again.error["code"]) == (404, "unknown_key_id")


async def test_a_change_that_others_made_meanwhile_is_told(admin: HttpClient) -> None:
    limit = {"rate_limit": {"subject": "tenant:http-admin-2", "tokens_per_day": 5}}
    assert (await admin.post("/v1/admin/SetRateLimit", limit)).json()["rate_limit"]["version"] == "1"
    stale = {"rate_limit": limit["rate_limit"] | {"version": 7}}
    removal = {"subject": "tenant:http-admin-2", "version": 7}
    for method, body in (("SetRateLimit", stale), ("DeleteRateLimit", removal)):
        refused = await admin.post(f"/v1/admin/{method}", body)
        assert (refused.status, refused.error["code"]) == (409, "version_mismatch")
    assert (await admin.post("/v1/admin/DeleteRateLimit", removal | {"version": 1})).status == 200


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"tenants": "acme"}', "there is no field tenants"),
        (b'{"tenant": 1}', "tenant: "),
        (b"[" * 60_000, "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
async def test_a_body_that_is_no_message_is_refused(admin: HttpClient, body: bytes, why: str) -> None:
    answer = await admin.call("POST", "/v1/admin/CreateApiKey", body)
    assert answer.status == 400
    assert why in answer.error["message"]


@pytest.mark.parametrize("size", [70_000, 300_000])
async def test_a_large_body_is_refused(admin: HttpClient, size: int) -> None:
    answer = await admin.call("POST", "/v1/admin/CreateApiKey", {"name": "n" * size})
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("SetGuardrails", {"guardrails": {"rules": {"patterns": ["a"] * 100_000}}}),
        ("CreateApiKey", {"tenant": "a", "name": "n", "scopes": [""] * 30_000}),
    ],
)
async def test_a_body_of_too_many_fields_is_refused_as_too_large(
    admin: HttpClient, method: str, body: dict[str, object]
) -> None:
    answer = await admin.post(f"/v1/admin/{method}", body)
    assert answer.status in (400, 413), answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert "retry-after" not in answer.headers


async def test_as_many_blocked_texts_as_there_may_be_are_set(admin: HttpClient) -> None:
    blocked = [{"text": f"é-{i:030}", "is_word": True} for i in range(25_000)]
    rules = {"tenant": "http-admin-3", "rules": {"blocked": blocked}}
    made = await admin.post("/v1/admin/SetGuardrails", {"guardrails": rules})
    assert made.status == 200, made.body
    assert made.json()["guardrails"]["n_blocked"] == 25_000
    name = {"tenant": "http-admin-3"}
    found = (await admin.post("/v1/admin/GetGuardrails", name)).json()["guardrails"]
    assert [rule["text"] for rule in found["rules"]["blocked"]] == [rule["text"] for rule in blocked]
    assert (await admin.post("/v1/admin/DeleteGuardrails", name)).status == 200


async def test_a_field_that_is_wrong_is_named(admin: HttpClient) -> None:
    answer = await admin.post("/v1/admin/CreateApiKey", {"tenant": "A", "name": "x", "scopes": ["inference"]})
    assert (answer.status, answer.error["param"]) == (400, "tenant")


async def test_what_is_changed_has_its_audit_line(admin: HttpClient, gateway: GatewayProcess) -> None:
    headers = {"x-request-id": "http-admin-change"}
    answer = await admin.call("POST", "/v1/admin/ClearCache", {"answers": True}, headers)
    assert answer.status == 200
    await until(lambda: bool(gateway.audit("http-admin-change")))
    (line,) = gateway.audit("http-admin-change")
    assert (line["event"], line["method"], line["answers"]) == ("change", "ClearCache", True)
    assert line["protocol"] == "http"


async def test_what_policy_changes_has_an_audit_line_of_the_gateway_too(
    admin: HttpClient, gateway: GatewayProcess
) -> None:
    limit = {"subject": "tenant:http-admin-4", "tokens_per_day": 5}
    stale = {"subject": limit["subject"], "version": 7}
    for request_id, method, body, said in (
        ("http-policy-1", "SetRateLimit", {"rate_limit": limit}, ("set", "allowed", 1)),
        ("http-policy-2", "DeleteRateLimit", stale, ("delete", "refused", None)),
        ("http-policy-3", "DeleteRateLimit", {"subject": limit["subject"]}, ("delete", "allowed", None)),
    ):
        await admin.post(f"/v1/admin/{method}", body, **{"x-request-id": request_id})
        await until(lambda: bool(gateway.audit(request_id)))  # noqa: B023
        (line,) = gateway.audit(request_id)
        assert (line["event"], line["method"]) == ("change", f"POST /v1/admin/{method}")
        assert line["kind"] == "rate_limit"
        assert (line["action"], line["decision"], line.get("version")) == said
        assert (line["name"], line["protocol"]) == (limit["subject"], "http")
        assert line["key_id"].startswith("key_")


@pytest.mark.parametrize(
    ("request_id", "body", "status", "reason"),
    [
        ("http-admin-refused", b'{"role": {"name": "A"}}', 400, "INVALID_ARGUMENT"),
        ("http-admin-no-json", b"{", 400, "INVALID_JSON"),
        ("http-admin-too-large", b" " * 300_000, 413, "BODY_TOO_LARGE"),
    ],
)
async def test_what_is_refused_has_its_audit_line(
    admin: HttpClient, gateway: GatewayProcess, request_id: str, body: bytes, status: int, reason: str
) -> None:
    answer = await admin.call("POST", "/v1/admin/SetRole", body, {"x-request-id": request_id})
    assert answer.status == status
    await until(lambda: bool(gateway.audit(request_id)))
    (line,) = gateway.audit(request_id)
    assert (line["method"], line["protocol"]) == ("POST /v1/admin/SetRole", "http")
    assert (line["decision"], line["reason"]) == ("refused", reason)


async def test_a_refused_stream_has_a_status(admin: HttpClient) -> None:
    answer = await admin.post("/v1/admin/DrainWorker", {"worker_id": "a b"})
    assert (answer.status, answer.error["param"]) == (400, "worker_id")


async def test_a_drain_is_events(admin: HttpClient, backend: Backend) -> None:
    scheduler = ScriptedAdmin(backend.bus)
    scheduler.drains(0, is_drained=True)
    await scheduler.start()
    try:
        async with admin.connection() as connection:
            await connection.request("POST", "/v1/admin/DrainWorker", {"worker_id": "worker-1"})
            head = await connection.answer_head()
            told = [event async for event in connection.events()]
    finally:
        await scheduler.close()
    assert head.headers["content-type"].startswith("text/event-stream")
    progress = {"residents": 0, "is_drained": True, "state": "WORKER_STATE_DRAINING"}
    assert told == [{"progress": progress}, "[DONE]"]


async def test_fairness_is_read_and_changed(admin: HttpClient, backend: Backend) -> None:
    scheduler = ScriptedAdmin(backend.bus)
    await scheduler.start()
    try:
        change = {"change": {"enable_preemption": True, "max_timeslice_tokens": "64"}}
        changed = await admin.post("/v1/admin/SetFairness", change)
        read = await admin.post("/v1/admin/GetFairness", None)
        stale = await admin.post("/v1/admin/SetFairness", {"change": {"reset": True, "version": 1}})
    finally:
        await scheduler.close()
    fairness = {
        "enable_preemption": True,
        "high_priority_threshold": 5,
        "max_timeslice_tokens": 64,
        "version": "2",
    }
    assert changed.json() == read.json() == {"fairness": fairness}
    assert (stale.status, stale.error["code"]) == (409, "version_mismatch")
