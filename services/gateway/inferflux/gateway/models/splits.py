"""Aliases that split requests over several models or adapters, by weight (pure).

Each tenant, or each key, always gets the same target: by weighted rendezvous hashing (Thaler and Ravishankar,
1998; weights as in Schindelhauer and Schomaker, 2005). Every gateway computes the same. When weights change,
or a target comes or goes, only those move that have to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.config_file import VARIABLE, read_config

_STICKY = "sticky"
_MAX_ALIASES = 64
_MAX_TARGETS = 16
_MAX_WEIGHT = 1e6
_HASH_BYTES = 8

Weight = Annotated[float, Field(gt=0, le=_MAX_WEIGHT)]


class Sticky(StrEnum):
    """Whose requests always get the same target."""

    TENANT = "tenant"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Splits:
    """Aliases by name, each with the weights of its targets."""

    aliases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sticky: Sticky = Sticky.TENANT

    def is_alias(self, name: str) -> bool:
        """Return whether requests of this name are split."""
        return name in self.aliases

    def choose(self, alias: str, identity: str, is_usable: Callable[[str], bool]) -> str:
        """The target of an alias for a tenant or a key.

        Args:
            is_usable: whether a target can be chosen; those that cannot leave their part to the others. Where
                none can, one is chosen all the same: its error says why.
        """
        weights = self.aliases[alias]
        usable = [target for target in weights if is_usable(target)] or list(weights)
        return max(usable, key=lambda target: (_score(alias, identity, target, weights[target]), target))


def _score(alias: str, identity: str, target: str, weight: float) -> float:
    """Higher is better; each target is the best for a part of all identities that is as large as its part of
    the weights."""
    parts = (part.encode() for part in (alias, identity, target))
    joined = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    drawn = int.from_bytes(blake2b(joined, digest_size=_HASH_BYTES).digest(), "little")
    return -weight / math.log((drawn + 0.5) / 2.0 ** (8 * _HASH_BYTES))


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    aliases: dict[str, dict[str, Weight] | str] = Field(default={})

    @field_validator("aliases", mode="before")
    @classmethod
    def _named(cls, aliases: Any) -> Any:
        return {} if aliases is None else aliases


def read_splits(path: Path) -> Splits:
    """The aliases that a configuration splits.

    aliases:
      chat: {chat.v1: 90, "chat.v2:formal": 10}
      sticky: tenant    # or key

    Raises:
        InvalidArgument: the file cannot be read, or says what cannot be; names the entry.
    """
    parsed = read_config(path, _File)
    aliases = dict(parsed.aliases)
    sticky = aliases.pop(_STICKY, Sticky.TENANT.value)
    if not isinstance(sticky, str) or sticky not in list(Sticky):
        raise InvalidArgument(f"{path}: aliases.{_STICKY} must be tenant or key", field=VARIABLE)
    split: dict[str, Mapping[str, float]] = {}
    for alias, weights in aliases.items():
        if isinstance(weights, str):
            message = f"{path}: aliases.{alias} must name models, each with its weight"
            raise InvalidArgument(message, field=VARIABLE)
        split[alias] = weights
        _check(path, alias, weights, aliases)
    if len(split) > _MAX_ALIASES:
        raise InvalidArgument(f"{path}: at most {_MAX_ALIASES} aliases can be split", field=VARIABLE)
    return Splits(split, Sticky(sticky))


def _check(path: Path, alias: str, weights: Mapping[str, float], aliases: Iterable[str]) -> None:
    """Raises InvalidArgument for an alias that cannot be split so."""
    if not 0 < len(weights) <= _MAX_TARGETS:
        message = f"{path}: aliases.{alias} must name 1 to {_MAX_TARGETS} models"
        raise InvalidArgument(message, field=VARIABLE)
    for name in (alias, *weights):
        try:
            check_model_name(name)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}: aliases.{alias!r}: {error.message}", field=VARIABLE) from None
    for target in weights:
        if target in aliases:
            message = f"{path}: aliases.{alias}: {target} is split itself"
            raise InvalidArgument(message, field=VARIABLE)
