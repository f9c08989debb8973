"""Keys, roles, limits and guardrails as tables."""

from __future__ import annotations

import pytest
import typer
from rich.console import Console, RenderableType

from inferflux.cli.operate.key_admin import seconds_of
from inferflux.cli.show.policy_tables import (
    changes_view,
    guardrails_table,
    guardrails_view,
    keys_table,
    limits_table,
    roles_table,
    usage_table,
)
from inferflux.v1 import guardrails_pb2, policy_pb2


def shown(view: RenderableType, width: int = 200) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_a_key_is_a_row() -> None:
    key = policy_pb2.ApiKey(
        key_id="key_1",
        tenant="acme",
        name="[ci]",
        scopes=["inference"],
        roles=["user"],
        models=["a*"],
        worker_pools=["gold"],
        deterministic=True,
        version=3,
    )
    key.expires_at.FromJsonString("2031-02-03T04:05:06Z")
    text = shown(keys_table([key]))
    for part in (
        "key_1",
        "acme",
        "[ci]",
        "inference role:user on a* in gold, deterministic",
        "2031-02-03 04:05 UTC",
        "3",
    ):
        assert part in text
    assert "two secrets" not in text
    key.previous_secret_until.FromSeconds(1)
    assert "two secrets" in shown(keys_table([key]))


def test_a_narrow_terminal_cuts_no_name() -> None:
    key = policy_pb2.ApiKey(
        key_id="key_0123456789abcdef", tenant="a-tenant-with-a-name", name="[ci]", scopes=["inference"]
    )
    key.last_used_at.FromSeconds(1)
    for width in (40, 60, 80):
        text = shown(keys_table([key]), width)
        assert max(map(len, text.splitlines())) <= width
        for part in ("key_0123456789abcdef", "a-tenant-with-a-name", "[ci]", "inference"):
            assert part in text
    limits = policy_pb2.RateLimit(subject="tenant:a", requests_per_day=7)
    assert len(shown(limits_table([limits]), 90).splitlines()) == 2
    assert "requests/day 7" in shown(limits_table([limits]), 60)


def test_a_list_of_nothing_says_so() -> None:
    assert limits_table([]) == "no limits are set"
    assert guardrails_table([]) == "no guardrails are set"


def test_a_role_is_a_row() -> None:
    text = shown(roles_table([policy_pb2.Role(name="user", scopes=["inference", "models"], is_builtin=True)]))
    assert "inference models" in text
    assert "built in" in text


def test_limits_are_a_row_and_none_is_a_dash() -> None:
    text = shown(limits_table([policy_pb2.RateLimit(subject="tenant:a", tokens_per_day=12345)]))
    assert "12,345" in text
    assert text.count(" -") == 5


def test_a_change_of_an_import_is_a_row() -> None:
    change = policy_pb2.PolicyChange(kind="api_key", name="key_1", action="update", fields=["name", "roles"])
    made = policy_pb2.ImportPolicyResponse(changes=[change], unchanged=12)
    text = shown(changes_view(made, is_dry_run=False))
    for part in ("api key", "key_1", "update", "name, roles", "1 change, 12 unchanged"):
        assert part in text
    assert "dry run" not in text
    assert "dry run" in shown(changes_view(made, is_dry_run=True))


def test_usage_says_how_much_of_what() -> None:
    found = policy_pb2.GetRateLimitResponse(rate_limit=policy_pb2.RateLimit(subject="tenant:*"))
    assert "tenant:* has no limits" in shown(usage_table(found))
    found.usage.add(name="tokens_per_minute", limit=1000, used=999, reset_ms=1500)
    text = shown(usage_table(found))
    for part in ("tokens per minute", "999", "1,000", "1.5s"):
        assert part in text


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("15m", 900), ("24h", 86_400), ("90d", 7_776_000)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert seconds_of(text, "--overlap") == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1.5h", "-1h", "1w", "\u0661h"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--overlap"):
        seconds_of(text, "--overlap")


def test_guardrails_are_a_row_and_their_rules_have_the_names_of_audit_lines() -> None:
    summary = guardrails_pb2.GuardrailsSummary(model="demo", n_blocked=12_000, version=7, guards_stream=True)
    text = shown(guardrails_table([summary]))
    for part in ("every", "demo", "12,000", "held", "7"):
        assert part in text
    rules = guardrails_pb2.GuardrailRules(
        blocked=[guardrails_pb2.BlockedText(text="[b]old", is_word=True)], patterns=["a[bc]+"], max_tokens=9
    )
    text = shown(guardrails_view(guardrails_pb2.Guardrails(tenant="acme", rules=rules)))
    for part in (
        "acme",
        "blocked[0]",
        "word",
        "[b]old",
        "pattern[0]",
        "a[bc]+",
        "max_tokens",
        "prompts alone",
    ):
        assert part in text
