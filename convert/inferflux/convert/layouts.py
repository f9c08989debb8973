"""Layout of a model of one architecture, independent of its files (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import gguf

from .safetensors import Weights

Change = Callable[[str, Weights], Weights]


def unchanged(_name: str, values: Weights) -> Weights:
    return values


@dataclass(frozen=True, slots=True)
class Layout:
    """Names are llama.cpp's; shapes are (rows, columns).

    Attributes:
        describe: writes the metadata that are the architecture's.
        wanted: tensors that have to be there.
        ignored: parts of names of the model's own tensors that llama.cpp does not need.
        prefixes: that the model's own names may have, or lack, before what the name map of gguf knows.
        renamed: the model's own names that the name map of gguf lacks, or knows as something else.
        change: what is made of a tensor's numbers before they are written.
        made: tensors that come from the configuration.
        plain: tensors that are stored as 32-bit floats.
        notes: what its user should know of it.
    """

    architecture: gguf.MODEL_ARCH
    layers: int
    vocabulary_size: int
    describe: Callable[[gguf.GGUFWriter], None]
    wanted: Mapping[str, tuple[int, ...]]
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    renamed: Mapping[str, str] = field(default_factory=dict)
    change: Change = unchanged
    made: Mapping[str, Weights] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
