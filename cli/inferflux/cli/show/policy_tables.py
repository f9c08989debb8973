"""Keys, roles, limits and guardrails as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from inferflux.common.contract.callers.rate_limits import duration
from inferflux.v1 import guardrails_pb2, policy_pb2

from .rows import make_table

_NONE = "[dim]-[/]"
_EVERY = "[dim]every[/]"


def keys_table(keys: Sequence[policy_pb2.ApiKey]) -> Table:
    """A row per key."""
    table = make_table("key", "tenant", "name", ">priority", "expires", "last used", ">version", "may")
    for key in keys:
        may = " ".join([*key.scopes, *(f"role:{role}" for role in key.roles)])
        models = f" on {', '.join(key.models)}" if key.models else ""
        pools = f" in {', '.join(key.worker_pools)}" if key.worker_pools else ""
        same = ", deterministic" if key.deterministic else ""
        rotating = " [yellow]two secrets[/]" if key.HasField("previous_secret_until") else ""
        table.add_row(
            f"[bold]{key.key_id}[/]{rotating}",
            escape(key.tenant),
            escape(key.name),
            str(key.max_priority),
            _time(key.expires_at) if key.HasField("expires_at") else "never",
            _time(key.last_used_at) if key.HasField("last_used_at") else _NONE,
            str(key.version),
            escape(may + models + pools + same),
        )
    return table


def roles_table(roles: Sequence[policy_pb2.Role]) -> Table:
    """A row per role."""
    table = make_table("role", "", ">version", "scopes", "models", "description")
    for role in roles:
        table.add_row(
            f"[bold]{escape(role.name)}[/]",
            "[dim]built in[/]" if role.is_builtin else "",
            str(role.version) if role.version else _NONE,
            escape(" ".join(role.scopes)),
            escape(", ".join(role.models)) or _NONE,
            escape(role.description),
        )
    return table


def limits_table(limits: Sequence[policy_pb2.RateLimit]) -> RenderableType:
    """A row per subject."""
    if not limits:
        return "no limits are set"
    table = make_table(
        "subject", ">requests/min", ">tokens/min", ">requests/day", ">tokens/day", ">at a time", ">version"
    )
    for limit in limits:
        table.add_row(
            f"[bold]{escape(limit.subject)}[/]",
            _limit(limit.requests_per_minute),
            _limit(limit.tokens_per_minute),
            _limit(limit.requests_per_day),
            _limit(limit.tokens_per_day),
            _limit(limit.concurrent_requests),
            str(limit.version) if limit.version else _NONE,
        )
    return table


def usage_table(found: policy_pb2.GetRateLimitResponse) -> RenderableType:
    """A row per limit of one subject."""
    if not found.usage:
        return f"{escape(found.rate_limit.subject)} has no limits"
    table = make_table("limit", ">used", ">of", ">all of it again in")
    for usage in found.usage:
        table.add_row(
            usage.name.replace("_", " "),
            f"{usage.used:,}",
            f"{usage.limit:,}",
            duration(usage.reset_ms) if usage.reset_ms else _NONE,
        )
    return Group(f"limits of [bold]{escape(found.rate_limit.subject)}[/]", "", table)


def used_table(used: policy_pb2.GetUsageResponse) -> RenderableType:
    """Table of a tenant's usage: a row per counter."""
    table = make_table("", ">used", ">of them cached")
    table.add_row("requests", f"{used.requests:,}", _NONE)
    table.add_row("prompt tokens", f"{used.prompt_tokens:,}", f"{used.cached_prompt_tokens:,}")
    table.add_row("completion tokens", f"{used.completion_tokens:,}", f"{used.cached_completion_tokens:,}")
    return Group(f"usage of [bold]{escape(used.tenant)}[/]", "", table)


def guardrails_table(sets: Sequence[guardrails_pb2.GuardrailsSummary]) -> RenderableType:
    """A row per set."""
    if not sets:
        return "no guardrails are set"
    table = make_table(
        "tenant",
        "model",
        ">blocked",
        ">patterns",
        ">characters",
        ">tokens",
        "answers",
        ">version",
        "changed by",
        "changed",
    )
    for each in sets:
        table.add_row(
            escape(each.tenant) or _EVERY,
            escape(each.model) or _EVERY,
            _limit(each.n_blocked),
            _limit(each.n_patterns),
            _limit(each.max_characters),
            _limit(each.max_tokens),
            "held" if each.guards_stream else _NONE,
            str(each.version),
            escape(each.changed_by),
            _time(each.changed_at),
        )
    return table


def guardrails_view(found: guardrails_pb2.Guardrails) -> RenderableType:
    """One set: a row per rule, by the name that audit lines give it."""
    rules = found.rules
    table = make_table("rule", "", "text")
    for i, blocked in enumerate(rules.blocked):
        table.add_row(f"blocked[{i}]", "word" if blocked.is_word else "", escape(blocked.text))
    for i, pattern in enumerate(rules.patterns):
        table.add_row(f"pattern[{i}]", "", escape(pattern))
    if rules.look_alikes:
        name = guardrails_pb2.LookAlikes.Name(rules.look_alikes).removeprefix("LOOK_ALIKES_")
        table.add_row("look_alikes", "", name.lower())
    if rules.ignores_accents:
        table.add_row("ignores_accents", "", "yes")
    for name in ("max_characters", "max_tokens"):
        if getattr(rules, name):
            table.add_row(name, "", f"{getattr(rules, name):,}")
    whose = f"tenant {escape(found.tenant) or _EVERY}, model {escape(found.model) or _EVERY}"
    answers = "answers are held to them too" if rules.guards_stream else "for prompts alone"
    return Group(f"guardrails of {whose}, version {found.version}: {answers}", "", table)


def changes_view(made: policy_pb2.ImportPolicyResponse, *, is_dry_run: bool) -> RenderableType:
    """A row per change of an import, and how much stays as it is."""
    n = len(made.changes)
    counted = f"{n} {'change' if n == 1 else 'changes'}, {made.unchanged} unchanged"
    summary = f"{counted}; this was a dry run, nothing is changed" if is_dry_run else counted
    if not made.changes:
        return summary
    table = make_table("what", "name", "", "fields")
    for change in made.changes:
        kind = change.kind.replace("_", " ")
        fields = escape(", ".join(change.fields)) or _NONE
        table.add_row(kind, f"[bold]{escape(change.name)}[/]", change.action, fields)
    return Group(table, "", summary)


def _limit(value: int) -> str:
    return f"{value:,}" if value else _NONE


def _time(at: Timestamp) -> str:
    return at.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M UTC")
