"""Sets of rules that are compiled already (pure)."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .compiled import CompiledRules

# Of all sets together: a compiled character takes 60 to 120 bytes.
MOST_CHARACTERS = 2 << 20


class SetKey(NamedTuple):
    """A set of rules as it is for one version of it; "" stands for every tenant, and for every model."""

    tenant: str
    model: str
    version: int

    @property
    def name(self) -> str:
        """Name of the set, whatever its version."""
        return f"{self.tenant}/{self.model}"


class CompiledCache:
    """The latest version of each set. Those that were not used for longest go when all are too large."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        self._sets: OrderedDict[SetKey, CompiledRules] = OrderedDict()
        self._versions: dict[str, SetKey] = {}

    def get(self, key: SetKey) -> CompiledRules | None:
        """A set, which is then the one that was used last."""
        found = self._sets.get(key)
        if found is not None:
            self._sets.move_to_end(key)
        return found

    def put(self, key: SetKey, rules: CompiledRules) -> None:
        """Keep a set, and forget other versions of it. The one that was put last always stays."""
        self._drop(self._versions.get(key.name))
        self._sets[key] = rules
        self._versions[key.name] = key
        while len(self._sets) > 1 and self._characters > self._most_characters:
            self._drop(next(iter(self._sets)))

    def of_tenant(self, tenant: str) -> dict[SetKey, CompiledRules]:
        """The sets that are every tenant's or this one's."""
        return {key: rules for key, rules in self._sets.items() if key.tenant in ("", tenant)}

    @property
    def _characters(self) -> int:
        return sum(rules.size for rules in self._sets.values())

    def _drop(self, key: SetKey | None) -> None:
        if key is not None:
            del self._sets[key], self._versions[key.name]
