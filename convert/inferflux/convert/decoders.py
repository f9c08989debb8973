"""Llama, Mistral, Qwen2, Qwen3 and Gemma: decoders that differ in a few tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import gguf

from .fields import Fields
from .layouts import Layout
from .rope import Rope
from .safetensors import Weights

_LAYERS: Final = 1024
_TANH_GELU = ("gelu_pytorch_tanh", "gelu", "gelu_new", "gelu_fast")


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of a model family from Llama.

    Attributes:
        permutes: whether rotary pairs are halves of a head in the file, and neighbours in llama.cpp.
        qkv_bias: whether queries, keys and values always have one.
        may_have_biases: whether config.json may ask for them.
        head_norms: whether queries and keys are normalized by head.
        adds_one: whether norms are stored less one.
        is_tied: whether embeddings are the output's weights unless config.json says otherwise.
        acts: of the feed-forward network, in config.json's words.
    """

    architecture: gguf.MODEL_ARCH
    permutes: bool = False
    qkv_bias: bool = False
    may_have_biases: bool = False
    head_norms: bool = False
    adds_one: bool = False
    is_tied: bool = False
    acts: tuple[str, ...] = ("silu",)


LLAMA: Final = Family(gguf.MODEL_ARCH.LLAMA, permutes=True, may_have_biases=True)
QWEN2: Final = Family(gguf.MODEL_ARCH.QWEN2, qkv_bias=True)
QWEN3: Final = Family(gguf.MODEL_ARCH.QWEN3, head_norms=True)
GEMMA: Final = Family(gguf.MODEL_ARCH.GEMMA, adds_one=True, is_tied=True, acts=_TANH_GELU)


def decoder(family: Family) -> Callable[[Fields], Layout]:
    """Build the function that reads a family's layout from config.json."""
    return lambda config: _Reader(family, config).layout()


class _Reader:
    def __init__(self, family: Family, config: Fields) -> None:
        self._family = family
        self._config = config
        self._layers = config.integer("num_hidden_layers", at_most=_LAYERS)
        self._dim = config.integer("hidden_size")
        self._heads = config.integer("num_attention_heads", at_most=65_536)
        self._kv_heads = config.integer("num_key_value_heads", self._heads, at_most=self._heads)
        if self._heads % self._kv_heads:
            raise config.error("num_key_value_heads", f"{self._heads} heads cannot share {self._kv_heads}")
        if "head_dim" not in config and self._dim % self._heads:
            raise config.error("num_attention_heads", f"{self._dim} does not split into {self._heads} heads")
        self._head_dim = config.integer("head_dim", max(self._dim // self._heads, 1))
        if self._head_dim % 2:
            raise config.error("head_dim", f"{self._head_dim} is odd")
        self._ff = config.integer("intermediate_size")
        self._vocab = config.integer("vocab_size")
        self._rope = Rope(config, self._head_dim)
        self._notes: list[str] = []
        self._refuse_what_is_unknown()

    def layout(self) -> Layout:
        family, config = self._family, self._config
        is_tied = config.flag("tie_word_embeddings", family.is_tied)
        wanted = {"token_embd.weight": (self._vocab, self._dim), "output_norm.weight": (self._dim,)}
        if not is_tied:
            wanted["output.weight"] = (self._vocab, self._dim)
        for i in range(self._layers):
            wanted |= self._layer(f"blk.{i}.")
        factors = self._rope.factors()
        return Layout(
            family.architecture,
            self._layers,
            self._vocab,
            self._describer(self._context()),
            wanted,
            ignored=(".rotary_emb.inv_freq", *(("lm_head.weight",) if is_tied else ())),
            prefixes=("", "model."),
            change=self._change,
            made={} if factors is None else {"rope_freqs.weight": factors},
            notes=self._notes,
        )

    def _layer(self, of: str) -> dict[str, tuple[int, ...]]:
        config, dim, ff = self._config, self._dim, self._ff
        q_dim, kv_dim = self._heads * self._head_dim, self._kv_heads * self._head_dim
        sizes = {"attn_q": (q_dim, dim), "attn_k": (kv_dim, dim), "attn_v": (kv_dim, dim)}
        biased = set(sizes) if self._family.qkv_bias else set()
        sizes["attn_output"] = (dim, q_dim)
        if self._family.may_have_biases and config.flag("attention_bias", False):
            biased |= set(sizes)
        feed = {"ffn_gate": (ff, dim), "ffn_up": (ff, dim), "ffn_down": (dim, ff)}
        if self._family.may_have_biases and config.flag("mlp_bias", False):
            biased |= set(feed)
        sizes |= feed
        found: dict[str, tuple[int, ...]] = {f"{of}{name}.weight": size for name, size in sizes.items()}
        found |= {f"{of}{name}.bias": sizes[name][:1] for name in biased}
        found |= {f"{of}attn_norm.weight": (dim,), f"{of}ffn_norm.weight": (dim,)}
        if self._family.head_norms:
            found |= {f"{of}attn_{of_what}_norm.weight": (self._head_dim,) for of_what in "qk"}
        return found

    def _describer(self, context: int) -> Callable[[gguf.GGUFWriter], None]:
        epsilon = self._config.number("rms_norm_eps", 1e-6)

        def describe(writer: gguf.GGUFWriter) -> None:
            writer.add_block_count(self._layers)
            writer.add_context_length(context)
            writer.add_embedding_length(self._dim)
            writer.add_feed_forward_length(self._ff)
            writer.add_head_count(self._heads)
            writer.add_head_count_kv(self._kv_heads)
            writer.add_key_length(self._head_dim)
            writer.add_value_length(self._head_dim)
            writer.add_layer_norm_rms_eps(epsilon)
            writer.add_vocab_size(self._vocab)
            self._rope.describe(writer)

        return describe

    def _context(self) -> int:
        """Trained context in tokens: at most a sliding window that llama.cpp would not keep to."""
        config = self._config
        context = config.integer("max_position_embeddings")
        uses_window = config.flag("use_sliding_window", "use_sliding_window" not in config)
        if not uses_window or "sliding_window" not in config:
            return context
        window = config.integer("sliding_window")
        if window < context:
            self._notes.append(
                f"it attends to the last {window:,} tokens alone, which llama.cpp does not do for this "
                f"architecture: its context is {window:,} tokens instead of {context:,}"
            )
        return min(window, context)

    def _change(self, name: str, values: Weights) -> Weights:
        if self._family.permutes and name.split(".")[-2] in ("attn_q", "attn_k"):
            heads = self._heads if ".attn_q." in name else self._kv_heads
            return pairs_of_halves(values, heads)
        if self._family.adds_one and name.endswith("norm.weight"):
            return values + 1
        return values

    def _refuse_what_is_unknown(self) -> None:
        config, family = self._config, self._family
        act = config.text("hidden_activation", config.text("hidden_act", family.acts[0]))
        if act not in family.acts:
            raise config.error("hidden_act", f"{act[:40]!r}: this architecture has {family.acts[0]} alone")
        if "partial_rotary_factor" in config and config.number("partial_rotary_factor") != 1:
            raise config.error("partial_rotary_factor", "heads that are turned in part are not converted")
        if not family.may_have_biases:
            for name in ("attention_bias", "mlp_bias"):
                if config.flag(name, False):
                    raise config.error(name, "this architecture has none")


def pairs_of_halves(values: Weights, heads: int) -> Weights:
    """Rows of each head in llama.cpp's order: (i, i + half), which turn together, become neighbours."""
    rows = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    reordered: Weights = rows.swapaxes(1, 2).reshape(values.shape)
    return reordered
