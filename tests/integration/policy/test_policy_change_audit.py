"""What policy's audit trail has of administrators' changes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from harness.audit import lines_in
from harness.policy import bearer, until

from inferflux.v1 import guardrails_pb2, policy_pb2

from .conftest import Running

RULES = guardrails_pb2.GuardrailRules(blocked=[guardrails_pb2.BlockedText(text="a-secret-word")])


class Trail:
    """Calls policy, and finds the line of each call."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._n_calls = 0
        self.tenant = f"audited-{uuid.uuid4().hex[:8]}"  # a second try finds nothing of the first

    async def line(self, method: str, request: Any) -> tuple[Any, dict[str, Any]]:
        """The answer of a call, None where it was refused, and its audit line."""
        self._n_calls += 1
        request_id = f"change-{self.tenant}-{self._n_calls}"
        metadata = (*bearer(self._running.admin), ("x-request-id", request_id))
        try:
            answer = await getattr(self._running.policy.stranger, method)(
                request, metadata=metadata, timeout=30
            )
        except grpc.aio.AioRpcError:
            answer = None
        audit = Path(self._running.policy.environment["INFERFLUX_AUDIT_DIR"])

        async def is_there() -> bool:
            return bool(lines_in(audit, request_id))

        await until(is_there)
        (line,) = lines_in(audit, request_id)
        assert line["event"] == "change"
        assert line["method"] == method
        assert line["key_id"].startswith("key_")
        return answer, line


@pytest.fixture
def trail(running: Running) -> Trail:
    return Trail(running)


def of(line: dict[str, Any], *names: str) -> list[Any]:
    return [line.get(name) for name in names]


WHAT = ("kind", "action", "name", "version_before", "version", "decision")


async def test_changes_of_a_key_have_lines_with_its_versions(trail: Trail) -> None:
    create = policy_pb2.CreateApiKeyRequest(tenant=trail.tenant, name="ci", scopes=["inference"])
    made, line = await trail.line("CreateApiKey", create)
    key_id = made.api_key.key_id
    assert of(line, *WHAT) == ["api_key", "create", key_id, 0, 1, "allowed"]
    assert of(line, "of_tenant", "key_name", "scopes") == [trail.tenant, "ci", ["inference"]]
    assert made.secret not in str(line)
    key = policy_pb2.ApiKey(key_id=key_id, name="new", version=1)
    update = policy_pb2.UpdateApiKeyRequest(api_key=key, update_mask=FieldMask(paths=["name"]))
    _, line = await trail.line("UpdateApiKey", update)
    assert of(line, *WHAT, "fields", "if_version") == [
        "api_key",
        "update",
        key_id,
        1,
        2,
        "allowed",
        ["name"],
        1,
    ]
    _, line = await trail.line("RotateApiKey", policy_pb2.RotateApiKeyRequest(key_id=key_id, overlap_s=9))
    assert of(line, *WHAT, "overlap_s") == ["api_key", "rotate", key_id, 2, 3, "allowed", 9]
    _, line = await trail.line("UpdateApiKey", update)
    assert of(line, *WHAT, "reason") == [
        "api_key",
        "update",
        key_id,
        None,
        None,
        "refused",
        "VERSION_MISMATCH",
    ]
    _, line = await trail.line("RevokeApiKey", policy_pb2.RevokeApiKeyRequest(key_id=key_id))
    assert of(line, *WHAT) == ["api_key", "revoke", key_id, 3, None, "allowed"]
    _, line = await trail.line("RevokeApiKey", policy_pb2.RevokeApiKeyRequest(key_id=key_id))
    assert of(line, *WHAT) == ["api_key", "revoke", key_id, None, None, "refused"]
    assert line["reason"] == "UNKNOWN_KEY_ID"


async def test_changes_of_roles_and_limits_have_lines_with_their_versions(trail: Trail) -> None:
    role = policy_pb2.SetRoleRequest(role=policy_pb2.Role(name=trail.tenant, scopes=["models"]))
    for before in (0, 1):
        _, line = await trail.line("SetRole", role)
        assert of(line, *WHAT) == ["role", "set", trail.tenant, before, before + 1, "allowed"]
        assert line["scopes"] == ["models"]
    _, line = await trail.line("DeleteRole", policy_pb2.DeleteRoleRequest(name=trail.tenant, version=2))
    assert of(line, *WHAT, "if_version") == ["role", "delete", trail.tenant, 2, None, "allowed", 2]
    limit = policy_pb2.RateLimit(subject=f"tenant:{trail.tenant}", tokens_per_day=5)
    for before in (0, 1):
        _, line = await trail.line("SetRateLimit", policy_pb2.SetRateLimitRequest(rate_limit=limit))
        assert of(line, *WHAT) == [
            "rate_limit",
            "set",
            f"tenant:{trail.tenant}",
            before,
            before + 1,
            "allowed",
        ]
        assert line["limits"] == {"tokens_per_day": 5}
    _, line = await trail.line(
        "DeleteRateLimit", policy_pb2.DeleteRateLimitRequest(subject=f"tenant:{trail.tenant}")
    )
    assert of(line, *WHAT) == ["rate_limit", "delete", f"tenant:{trail.tenant}", 2, None, "allowed"]


async def test_changes_of_guardrails_have_lines_with_their_versions_and_no_text(trail: Trail) -> None:
    given = guardrails_pb2.Guardrails(tenant=trail.tenant, rules=RULES)
    request = guardrails_pb2.SetGuardrailsRequest(guardrails=given)
    made, line = await trail.line("SetGuardrails", request)
    first = made.guardrails.version
    assert of(line, *WHAT) == ["guardrails", "set", f"{trail.tenant}/", 0, first, "allowed"]
    made, line = await trail.line("SetGuardrails", request)
    second = made.guardrails.version
    assert of(line, *WHAT, "n_blocked") == [
        "guardrails",
        "set",
        f"{trail.tenant}/",
        first,
        second,
        "allowed",
        1,
    ]
    assert "a-secret-word" not in str(line)
    stale = guardrails_pb2.DeleteGuardrailsRequest(tenant=trail.tenant, version=first)
    _, line = await trail.line("DeleteGuardrails", stale)
    assert of(line, "decision", "reason", "if_version") == ["refused", "VERSION_MISMATCH", first]
    _, line = await trail.line(
        "DeleteGuardrails", guardrails_pb2.DeleteGuardrailsRequest(tenant=trail.tenant)
    )
    assert of(line, *WHAT) == ["guardrails", "delete", f"{trail.tenant}/", second, None, "allowed"]
