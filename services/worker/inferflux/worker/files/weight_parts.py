"""Parts of a model that its tensors belong to, and the bytes they take (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

_LAYER = re.compile(r"blk\.(\d{1,9})\.")
# Of a mixture: an expert's own tensors, and not those that all tokens use.
_EXPERTS = re.compile(r"\.ffn_(?:up|down|gate|gate_up)_(?:ch|)exps\.")
_INPUT = re.compile(r"(?:token_embd|position_embd|token_types|token_embd_norm|per_layer_)")
_OUTPUT_WEIGHT = "output.weight"

TYPE_SIZES: Mapping[int, tuple[int, int]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
    40: (64, 36),
}
"""Numbers of a block and its bytes, by ggml_type."""
# Of a type that is not known here: as much as any takes.
_LARGEST = (1, 4)


def bytes_of(numbers: int, kind: int) -> int:
    """Bytes that numbers of a ggml_type take."""
    block, size = TYPE_SIZES.get(kind, _LARGEST)
    return -(-numbers // block) * size


@dataclass(frozen=True, slots=True)
class WeightParts:
    """Bytes of a model's tensors.

    Attributes:
        input: embeddings, which stay in main memory; `embedding`: those of tokens.
        output: what comes after the last layer.
        layers: of each layer, its experts among them.
        experts: of each layer, those alone. expert_tensors: how many tensors these are.
        shares_output: whether the output layer is the embeddings once more: a GPU has a copy then.
    """

    input: int = 0
    embedding: int = 0
    output: int = 0
    layers: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    expert_tensors: tuple[int, ...] = ()
    shares_output: bool = False


NO_PARTS = WeightParts()


class PartCounts:
    """Adds up tensors as they are read."""

    def __init__(self) -> None:
        self._layers: Counter[int] = Counter()
        self._experts: Counter[int] = Counter()
        self._expert_tensors: Counter[int] = Counter()
        self._input = self._embeddings = self._output = 0
        self._has_output = False

    def add(self, name: str, numbers: int, kind: int) -> None:
        """One tensor of the index."""
        n_bytes = bytes_of(numbers, kind)
        if found := _LAYER.match(name):
            self._layers[int(found[1])] += n_bytes
            if _EXPERTS.search(name):
                self._experts[int(found[1])] += n_bytes
                self._expert_tensors[int(found[1])] += 1
        elif _INPUT.match(name):
            self._input += n_bytes
            if name == "token_embd.weight":
                self._embeddings = n_bytes
        else:
            self._output += n_bytes
            self._has_output = self._has_output or name == _OUTPUT_WEIGHT

    def of(self, n_layers: int) -> WeightParts:
        """The parts of a model of `n_layers` layers. Tensors of further ones count as the output's."""
        beyond = sum(n_bytes for layer, n_bytes in self._layers.items() if layer >= n_layers)
        return WeightParts(
            input=self._input,
            embedding=self._embeddings,
            output=self._output + beyond + (0 if self._has_output else self._embeddings),
            layers=tuple(self._layers[i] for i in range(n_layers)),
            experts=tuple(self._experts[i] for i in range(n_layers)),
            expert_tensors=tuple(self._expert_tensors[i] for i in range(n_layers)),
            shares_output=not self._has_output,
        )
