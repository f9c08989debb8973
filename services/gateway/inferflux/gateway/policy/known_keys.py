"""Keys that were admitted before, and how long policy need not be asked about them. Pure: times are given."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from .caller import Caller

# Keys that are remembered.
_MOST = 4096


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of policy that holds for other calls too: when it was asked for, and until when it holds."""

    asked_s: float
    until_s: float
    caller: Caller


@dataclass(slots=True)
class _Known:
    """A key, the ceiling of its priorities, and by scope the last answer, also one that is too old."""

    max_priority: int
    answers: dict[str, _Answer] = field(default_factory=dict)


class KnownKeys:
    """Keys by the digest of their secret, the ones that were admitted last.

    Args:
        most: keys that are remembered.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._changed_s = -math.inf

    def __len__(self) -> int:
        return len(self._known)

    def ceiling(self, key: bytes) -> int | None:
        """The ceiling of a key's priorities; None for one that is not known."""
        known = self._known.get(key)
        return None if known is None else known.max_priority

    def holder(self, key: bytes, scope: str, *, came_s: float, now_s: float) -> Caller | None:
        """The holder of a key, where policy need not be asked about a call: the last answer still holds, or
        its question was sent after the call came.
        """
        answer = self._answer(key, scope)
        if answer is not None and (now_s < answer.until_s or came_s <= answer.asked_s):
            return answer.caller
        return None

    def is_shared(self, key: bytes, scope: str) -> bool:
        """Return whether policy's last answer about a key did hold for other calls."""
        return self._answer(key, scope) is not None

    def _answer(self, key: bytes, scope: str) -> _Answer | None:
        known = self._known.get(key)
        return None if known is None else known.answers.get(scope)

    def admitted(
        self,
        key: bytes,
        scope: str,
        caller: Caller,
        *,
        max_priority: int,
        asked_s: float,
        valid_s: float | None,
    ) -> None:
        """Policy has admitted a key.

        Args:
            asked_s: when the question was sent.
            valid_s: for how long from then on its answer holds; 0: for this call alone; None for a call that
                counts nowhere, of which nothing follows for others.
        """
        known = self._known.setdefault(key, _Known(max_priority))
        known.max_priority = max_priority
        if valid_s is not None:
            known.answers.pop(scope, None)
        if valid_s and asked_s > self._changed_s:
            known.answers[scope] = _Answer(asked_s, asked_s + valid_s, caller)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """Policy knows the key no more."""
        self._known.pop(key, None)

    def changed(self, now_s: float) -> None:
        """An administrator may have changed something: no answer to an earlier question holds."""
        self._changed_s = now_s
        for known in self._known.values():
            known.answers.clear()
