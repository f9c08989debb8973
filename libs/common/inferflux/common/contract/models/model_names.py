"""Patterns of the models that a key may use: names, and prefixes followed by `*`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferflux.common.contract.checks import MAX_MODEL_NAME_BYTES, check_count
from inferflux.common.contract.errors import InvalidArgument

EVERY = "*"
MAX_PATTERNS = 64


def allows(patterns: Sequence[str], model: str) -> bool:
    """True if one of the patterns stands for the model; without patterns every model is allowed."""
    return not patterns or any(_covers(pattern, model) for pattern in patterns)


def intersection(some: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Patterns for the models that both stand for. Neither is empty; the result may be."""
    found: dict[str, None] = {}
    for one in some:
        for other in others:
            if _covers(one, other):
                found[other] = None
            elif _covers(other, one):
                found[one] = None
    return tuple(found)


def covers(some: Sequence[str], others: Sequence[str]) -> bool:
    """True if all models that `others` stand for are among those of `some`. Neither is empty."""
    return all(any(_covers(one, other) for one in some) for other in others)


def parse_patterns(texts: Iterable[str], *, field: str = "models") -> tuple[str, ...]:
    """The patterns, once each.

    Raises:
        InvalidArgument: one could be no name, or there are too many.
    """
    patterns = tuple(dict.fromkeys(texts))
    check_count(patterns, MAX_PATTERNS, field)
    for i, pattern in enumerate(patterns):
        name = pattern.removesuffix("*")
        is_name = pattern == EVERY or (name and "*" not in name and name.isprintable())
        if not is_name or len(name.encode()) > MAX_MODEL_NAME_BYTES:
            message = "a model is a name, or the beginning of one followed by *"
            raise InvalidArgument(message, field=f"{field}[{i}]")
    return patterns


def _covers(pattern: str, name: str) -> bool:
    """True if it stands for all that `name` stands for, which may be a pattern too."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return pattern == name
