"""The rules of what is drafted, each of which `benchmarks.speculation --ablation` leaves out once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from inferflux.worker.engine.plan.ngram import NgramIndex

_ENGINE = "inferflux.worker.engine"
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that can be left out.

    Attributes:
        sources: of the drafts that it is for.
        changes: names in modules of the engine, and what is there without the rule.
    """

    sources: tuple[str, ...]
    changes: tuple[tuple[str, str, Any], ...]


def _whole(tokens: list[int], _ends: frozenset[int]) -> list[int]:
    return tokens


def _look_up_pairs(index: NgramIndex) -> None:
    at = index._after_pair.get(index._pair, 0)  # noqa: SLF001
    index._at, index.length = at, 2 if at else 0  # noqa: SLF001


EXACTLY = Rule(("draft",), (("step.drafting", "_MORE_OF_SURE", 1),))
"""Left out, a draft model drafts no more tokens than it is asked for."""

RULES = {
    "a single token is looked up": Rule(("ngram",), (("plan.ngram:NgramIndex", "_look_up", _look_up_pairs),)),
    "a rate for each length": Rule(
        ("ngram",),
        (
            ("plan.speculation", "_LONGEST", 1),
            ("plan.speculation", "_KINDS", 2),
            ("plan.speculation", "_FIRST_RATES", (0.7, 0.6)),
        ),
    ),
    "drafts end before the answer's end": Rule(("ngram",), (("step.drafting", "_before_end", _whole),)),
    "a time for each number of rows": Rule(
        ("ngram", "draft"), (("llama.native", "_ROW_TRIALS", (1, 2, 63)),)
    ),
    "the next rows are looked at as well": Rule(
        ("ngram", "draft"), (("plan.budget", "_ROWS_LOOKED_AHEAD", 1),)
    ),
    "tries": Rule(("ngram", "draft"), (("plan.speculation:Tries", "_SOONEST", _NEVER),)),
    "a draft ends where its model is not sure": Rule(
        ("draft",),
        (
            ("plan.speculation:Course", "is_worth_a_row", lambda _course, _margin: True),
            ("plan.speculation:Course", "goes_on", True),
            ("step.drafting", "_MORE_OF_SURE", 1),
        ),
    ),
    "evidence fades": Rule(("draft",), (("plan.speculation", "_FADING", 1.0),)),
}


@contextlib.contextmanager
def without(rule: Rule | None) -> Iterator[None]:
    """Engines that are made and run meanwhile do not have this rule."""
    with contextlib.ExitStack() as stack:
        for place, name, value in rule.changes if rule else ():
            module, _, inner = place.partition(":")
            found: Any = import_module(f"{_ENGINE}.{module}")
            stack.enter_context(patch.object(getattr(found, inner) if inner else found, name, value))
        yield
