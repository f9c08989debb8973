"""The types in which a KV cache keeps its numbers (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KvType = Literal["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
"""Those that llama.cpp takes for a KV cache, by their names in llama.cpp."""

_USUAL: KvType = "f16"


@dataclass(frozen=True, slots=True)
class NumberType:
    """Storage of the numbers of a type.

    Attributes:
        ggml_type: in enum ggml_type.
        block: numbers that are kept together.
        block_bytes: what a block takes.
    """

    ggml_type: int
    block: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block > 1

    def bytes_of(self, n: int) -> int:
        """Bytes that `n` numbers take, in whole blocks."""
        return -(-n // self.block) * self.block_bytes


NUMBER_TYPES: dict[KvType, NumberType] = {
    "f16": NumberType(1, 1, 2),
    "bf16": NumberType(30, 1, 2),
    "f32": NumberType(0, 1, 4),
    "q8_0": NumberType(8, 32, 34),
    "q5_1": NumberType(7, 32, 24),
    "q5_0": NumberType(6, 32, 22),
    "q4_1": NumberType(3, 32, 20),
    "q4_0": NumberType(2, 32, 18),
    "iq4_nl": NumberType(20, 32, 18),
}


@dataclass(frozen=True, slots=True)
class KvTypes:
    """Types in which the keys and the values of a cache are kept."""

    keys: KvType = _USUAL
    values: KvType = _USUAL

    @property
    def key_type(self) -> NumberType:
        return NUMBER_TYPES[self.keys]

    @property
    def value_type(self) -> NumberType:
        return NUMBER_TYPES[self.values]

    def __str__(self) -> str:
        return self.keys if self.keys == self.values else f"{self.keys} and {self.values}"

    @property
    def is_quantized(self) -> bool:
        """True if the keys or the values are quantized."""
        return self.key_type.is_quantized or self.value_type.is_quantized


USUAL = KvTypes()
"""What a cache has unless something else is asked for."""
