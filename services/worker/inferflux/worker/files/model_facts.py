"""Facts about a model in the head of its GGUF file: how large it is, and what it is kept in (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferflux.v1 import model_pb2

from .gguf_header import Array, Buffer, Header, integers_of
from .kv_types import KvTypes
from .weight_parts import NO_PARTS, WeightParts

# enum ggml_type of llama.cpp's ggml.h.
_TYPE_NAMES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}

# Architectures for which llama.cpp makes no memory, and that embed.
_ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)
_RANK = 4


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Attributes:
    parameters: numbers in all tensors.
    quantization: what most of them are kept in, by llama.cpp's name; "" if it is not known here.
    n_experts, n_active_experts: 0 where there is no mixture.
    embedding, feed_forward: how wide a layer is.
    kv_heads: of each layer; 0 where a layer keeps no cells.
    key_length, value_length: numbers of one head.
    has_window: whether some layers attend to the latest tokens alone.
    parts: what the weights take, by the part of the model.
    pooling: how texts are pooled to vectors, by llama.cpp's number; -1 where the file does not say.
    has_memory: whether it keeps keys and values: an encoder does not, and generates nothing.
    can_call_tools: whether requests may have tools; found by the probe.
        has_generic_tools: whether a text of the system tells them, since its chat template has no place.
    """

    parameters: int = 0
    quantization: str = ""
    vocabulary_size: int = 0
    has_chat_template: bool = False
    n_experts: int = 0
    n_active_experts: int = 0
    embedding: int = 0
    feed_forward: int = 0
    kv_heads: tuple[int, ...] = ()
    key_length: int = 0
    value_length: int = 0
    has_window: bool = False
    parts: WeightParts = NO_PARTS
    pooling: int = -1
    has_memory: bool = True
    can_call_tools: bool = False
    has_generic_tools: bool = False

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> ModelFacts:
        """Return the facts from what `dataclasses.asdict` and JSON have made of them."""
        parts: dict[str, Any] = dict(said["parts"])
        parts |= {name: tuple(value) for name, value in parts.items() if isinstance(value, list)}
        return cls(**said | {"kv_heads": tuple(said["kv_heads"]), "parts": WeightParts(**parts)})

    def kv_bytes_of_layer(self, layer: int, types: KvTypes) -> int:
        """Bytes that keys and values of one token take in a layer."""
        heads = self.kv_heads[layer] if layer < len(self.kv_heads) else 0
        keys = types.key_type.bytes_of(heads * self.key_length)
        return keys + types.value_type.bytes_of(heads * self.value_length)

    @property
    def is_moe(self) -> bool:
        """True if it is a mixture of experts."""
        return self.n_experts > 1

    @property
    def role(self) -> model_pb2.ModelRole.ValueType:
        """Role that the file is made for: a file that says how it pools is made for vectors or ranking."""
        if self.pooling == _RANK:
            return model_pb2.MODEL_ROLE_RERANK
        if self.pooling > 0 or not self.has_memory:
            return model_pb2.MODEL_ROLE_EMBEDDING
        return model_pb2.MODEL_ROLE_GENERATION

    def kv_bytes_per_token(self, types: KvTypes) -> int:
        """The same of all layers together."""
        return sum(self.kv_bytes_of_layer(layer, types) for layer in range(len(self.kv_heads)))


def facts_of(view: Buffer, header: Header) -> ModelFacts:
    """Return the facts in the head of the file that `view` begins with. Its fields have passed
    `check_metadata`."""
    metadata = header.metadata
    architecture = str(metadata["general.architecture"])

    def number(name: str, default: int = 0) -> int:
        value = metadata.get(f"{architecture}.{name}", default)
        if isinstance(value, Array):
            return max(integers_of(view, value), default=default)
        return value if isinstance(value, int) else default

    layers = number("block_count")
    heads = max(number("attention.head_count", 1), 1)
    width = number("embedding_length") // heads
    tokens = metadata.get("tokenizer.ggml.tokens")
    most = max(header.weights, key=lambda kind: header.weights[kind], default=-1)
    return ModelFacts(
        parameters=sum(header.weights.values()),
        quantization=_TYPE_NAMES.get(most, ""),
        vocabulary_size=tokens.count if isinstance(tokens, Array) else number("vocab_size"),
        has_chat_template="tokenizer.chat_template" in metadata,
        n_experts=number("expert_count"),
        n_active_experts=number("expert_used_count"),
        embedding=number("embedding_length"),
        feed_forward=number("feed_forward_length"),
        kv_heads=_kv_heads(view, header, architecture, layers, heads),
        key_length=number("attention.key_length", width),
        value_length=number("attention.value_length", width),
        has_window=number("attention.sliding_window") > 0,
        parts=header.parts.of(layers),
        pooling=number("pooling_type", -1),
        has_memory=architecture not in _ENCODERS,
    )


def _kv_heads(view: Buffer, header: Header, architecture: str, layers: int, heads: int) -> tuple[int, ...]:
    """Return the number of KV heads of each layer. A file may give one number for all, or one for each."""
    value = header.metadata.get(f"{architecture}.attention.head_count_kv", heads)
    if isinstance(value, Array):
        each = list(integers_of(view, value))[:layers]
        return tuple(each + [each[-1] if each else heads] * (layers - len(each)))
    return (value if isinstance(value, int) else heads,) * layers
