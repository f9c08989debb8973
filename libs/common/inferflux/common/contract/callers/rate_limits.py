"""Remaining rate limits, as clients are told: `x-ratelimit-...` in trailing metadata and headers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inferflux.v1 import policy_pb2

State = policy_pb2.RateLimitState

NAMES = ("requests", "tokens")
HEADERS = tuple(f"x-ratelimit-{what}-{name}" for name in NAMES for what in ("limit", "remaining", "reset"))


def tightest(states: Iterable[State]) -> list[State]:
    """For each name the state with least left, in the order of `NAMES`; of two, the one that lasts longer."""
    by_name: dict[str, State] = {}
    for state in states:
        known = by_name.get(state.name)
        if known is None or _order(state) < _order(known):
            by_name[state.name] = state
    return [by_name[name] for name in NAMES if name in by_name]


def _order(state: State) -> tuple[int, int]:
    return state.remaining, -state.reset_ms


def headers_of(states: Iterable[State]) -> Mapping[str, str]:
    """The headers that tell of them."""
    headers: dict[str, str] = {}
    for state in tightest(states):
        headers[f"x-ratelimit-limit-{state.name}"] = str(state.limit)
        headers[f"x-ratelimit-remaining-{state.name}"] = str(state.remaining)
        headers[f"x-ratelimit-reset-{state.name}"] = duration(state.reset_ms)
    return headers


def duration(ms: int) -> str:
    """Duration as OpenAI's API has it: `12ms`, `1.5s`, `6m0s`, `23h59m59s`. It is rounded up: from a second
    on to tenths, from a minute on to seconds.
    """
    if ms < 1000:
        return f"{ms}ms"
    if ms <= 59_900:
        return f"{-(-ms // 100) / 10:g}s"
    seconds = -(-ms // 1000)
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
