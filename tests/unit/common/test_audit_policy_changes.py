"""What audit lines say of changes of policy."""

from __future__ import annotations

from google.protobuf.field_mask_pb2 import FieldMask

from inferflux.common.calls.audit.policy_changes import asked
from inferflux.v1 import policy_pb2


def test_a_changed_key_is_told_with_what_it_may_do_from_then_on() -> None:
    key = policy_pb2.ApiKey(
        key_id="key_0", scopes=["admin"], roles=["r"], models=["unnamed"], max_priority=9, version=3
    )
    mask = FieldMask(paths=["scopes", "roles", "max_priority", "expires_at", "no such field", "tenant"])
    line = asked(policy_pb2.UpdateApiKeyRequest(api_key=key, update_mask=mask))
    assert line == {
        "kind": "api_key",
        "action": "update",
        "name": "key_0",
        "if_version": 3,
        "fields": list(mask.paths),
        "scopes": ["admin"],
        "roles": ["r"],
        "max_priority": 9,
    }
