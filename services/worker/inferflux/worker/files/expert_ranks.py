"""Experts of a mixture on several devices: which of them has those of which layer (pure).

In a GGUF file one tensor has all experts of a layer, and llama.cpp keeps a tensor in one memory. So a rank
has whole layers' experts. Experts of one layer are never on several ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

# As many as a model's card may have.
MOST_RANKS = 32
_RANK = re.compile(r"([A-Za-z0-9_.:\[\]-]{1,64})(?:=(\d{1,4})-(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class ExpertRank:
    """A device, and the layers whose experts it is to have.

    Attributes:
        device: by its name, or the host:port of the RPC server that lends it.
        layers: the first and the last one, counted from 0; None: an equal part of all.
    """

    device: str
    layers: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """As a setting spells it."""
        return self.device if self.layers is None else f"{self.device}={self.layers[0]}-{self.layers[1]}"


def ranks_of(given: Iterable[str]) -> tuple[ExpertRank, ...]:
    """The ranks that are asked for, each as `DEVICE=FIRST-LAST`, or all as `DEVICE`.

    Raises:
        ValueError: one is neither, or two have one layer.
    """
    found = tuple(map(_rank_of, given))
    if len(found) > MOST_RANKS:
        raise ValueError(f"must be at most {MOST_RANKS}")
    ranges = sorted(rank.layers for rank in found if rank.layers is not None)
    if ranges and len(ranges) < len(found):
        raise ValueError("must have layers for every device, or for none")
    devices = [rank.device.lower() for rank in found]
    if not ranges and len(set(devices)) < len(devices):
        raise ValueError("names a device twice, without layers")
    for (_, last), (first, _) in pairwise(ranges):
        if first <= last:
            raise ValueError(f"gives layer {first} to two devices")
    return found


def _rank_of(one: str) -> ExpertRank:
    found = _RANK.fullmatch(one)
    if found is None:
        raise ValueError(f"{one!r} is not DEVICE=FIRST-LAST, such as CUDA0=0-11, nor DEVICE")
    if found[2] is None:
        return ExpertRank(found[1])
    first, last = int(found[2]), int(found[3])
    if first > last:
        raise ValueError(f"{one!r} has its last layer before its first")
    return ExpertRank(found[1], (first, last))


class ExpertDispatch:
    """Ranks of one model.

    Args:
        ranks: as they are asked for.
        layers: that have experts, in their order.
        n_experts: of each of these.

    Attributes:
        ranks: each with its layers; those that are left without any are not among them.

    Raises:
        ValueError: layers are asked for that the model does not have.
    """

    def __init__(self, ranks: Sequence[ExpertRank], layers: Sequence[int], n_experts: int) -> None:
        self._layers = frozenset(layers)
        self._n_experts = n_experts
        self.ranks = tuple(
            _checked(ranks, layers) if any(r.layers for r in ranks) else _parted(ranks, layers)
        )

    def layers_of(self, rank: int) -> list[int]:
        """Layers whose experts a rank has."""
        bounds = self.ranks[rank].layers
        return [] if bounds is None else [i for i in range(bounds[0], bounds[1] + 1) if i in self._layers]

    def owner_of(self, layer: int, expert: int) -> int | None:
        """The rank that has an expert; None: there is no such expert, or it is where its layer is."""
        return next((i for i in range(len(self.ranks)) if self.owns_expert(i, layer, expert)), None)

    def owns_expert(self, rank: int, layer: int, expert: int) -> bool:
        """True if a rank has an expert of a layer: then it has all of that layer."""
        bounds = self.ranks[rank].layers
        if bounds is None or layer not in self._layers or not 0 <= expert < self._n_experts:
            return False
        return bounds[0] <= layer <= bounds[1]


def _checked(ranks: Sequence[ExpertRank], layers: Sequence[int]) -> Sequence[ExpertRank]:
    for rank in ranks:
        first, last = rank.layers or (0, 0)
        if last > max(layers) or not any(first <= layer <= last for layer in layers):
            raise ValueError(
                f"has {rank.words}, and the model's experts are in layers {layers[0]}-{layers[-1]}"
            )
    return ranks


def _parted(ranks: Sequence[ExpertRank], layers: Sequence[int]) -> Iterable[ExpertRank]:
    """Equal parts of the layers, one after the other; the first ones have one more where they must."""
    each, more = divmod(len(layers), len(ranks) or 1)
    at = 0
    for i, rank in enumerate(ranks):
        n = each + (i < more)
        if n:
            yield replace(rank, layers=(layers[at], layers[at + n - 1]))
        at += n
