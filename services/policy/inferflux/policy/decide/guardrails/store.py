"""Where sets of rules are kept, as policy asks for them.

A version is the time of its change in ms, or one more than the last. So no two changes have the same version,
also after a store has lost its data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from inferflux.common.contract.errors import Aborted, NotFound, ResourceExhausted
from inferflux.common.text.guardrails.cache import SetKey
from inferflux.v1 import guardrails_pb2

MAX_SETS = 1000

MAX_AGE_S = 0.25
"""What one process has changed, in any store, others see after this time, and that of one read."""

Rules = guardrails_pb2.GuardrailRules
Summary = guardrails_pb2.GuardrailsSummary


class Name(NamedTuple):
    """The tenant and the model that a set is for; "" stands for every tenant, and for every model."""

    tenant: str
    model: str

    @property
    def text(self) -> str:
        return f"{self.tenant}/{self.model}"

    @classmethod
    def parse(cls, text: str) -> Name:
        tenant, _, model = text.partition("/")
        return cls(tenant, model)


class Versions(NamedTuple):
    """Versions of a set before and after a change; 0: there was none."""

    before: int
    now: int


@dataclass(frozen=True, slots=True)
class Index:
    """The sets that there are, by what changes seldom.

    Attributes:
        with_texts: tenants that have sets for which the text of a prompt is needed; "" is every tenant.
        with_streams: tenants that have sets for answers.
    """

    sets: Mapping[Name, Summary] = field(default_factory=dict)
    with_texts: frozenset[str] = frozenset()
    with_streams: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sets: Mapping[Name, Summary]) -> Index:
        texts = (n.tenant for n, s in sets.items() if s.n_blocked or s.n_patterns or s.max_characters)
        streams = (name.tenant for name, summary in sets.items() if summary.guards_stream)
        return cls(sets, frozenset(texts), frozenset(streams))

    def holds_any(self, tenant: str) -> bool:
        """True if there is a set for requests of a tenant, of whatever model."""
        return any(name.tenant in ("", tenant) for name in self.sets)

    def holding(self, tenant: str, model: str) -> list[SetKey]:
        """The sets that hold for requests of a tenant and a model, the most general one first."""
        names = (Name("", ""), Name("", model), Name(tenant, ""), Name(tenant, model))
        return [self._key(name) for name in dict.fromkeys(names) if name in self.sets]

    def for_streams(self, tenant: str, model: str) -> list[SetKey]:
        """The sets that answers are held to; with "" as the model, those of all models."""
        if model:
            keys = self.holding(tenant, model)
        else:
            keys = [self._key(name) for name in sorted(self.sets) if name.tenant in ("", tenant)]
        return [key for key in keys if self.sets[Name(key.tenant, key.model)].guards_stream]

    def _key(self, name: Name) -> SetKey:
        return SetKey(name.tenant, name.model, self.sets[name].version)


class GuardrailStore(Protocol):
    """Sets of rules by name. What one process writes, others read within `MAX_AGE_S`. Every method raises
    Unavailable when the store does not answer in time.
    """

    async def index(self) -> Index: ...

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]: ...

    async def put(self, name: Name, summary: Summary, rules: Rules) -> Versions:
        """Write a set, and return its versions.

        Args:
            summary: with version 0, whatever is stored is replaced.

        Raises:
            Aborted: the stored one has another version than the summary says.
            ResourceExhausted: there are as many sets as there may be.
        """
        ...

    async def delete(self, name: Name, *, version: int) -> int:
        """Remove a set, and return the version that it had.

        Args:
            version: 0: whichever it has.

        Raises:
            NotFound: there is none of this name.
            Aborted: it has another version.
        """
        ...


def changed(name: Name) -> Aborted:
    message = f"the guardrails {name.text} were changed meanwhile: read them again"
    return Aborted(message, reason="VERSION_MISMATCH")


def too_many() -> ResourceExhausted:
    message = f"there are {MAX_SETS} sets of guardrails, and no more can be made"
    return ResourceExhausted(message, reason="TOO_MANY_GUARDRAILS", retry_delay_s=None)


def unknown(name: Name) -> NotFound:
    return NotFound(f"there are no guardrails {name.text}", reason="UNKNOWN_GUARDRAILS")
