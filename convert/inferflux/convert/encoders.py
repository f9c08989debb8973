"""BERT: embedders and rerankers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gguf

from .errors import ConversionError
from .fields import CONFIG_BYTES, Fields, parse_json, read_bounded, read_fields
from .layouts import Layout

_LAYERS: Final = 1024
_NORMS: Final = ("attn_output_norm", "layer_output_norm")
_HEADS: Mapping[str, str] = {
    "pooler.dense.weight": "cls.weight",
    "pooler.dense.bias": "cls.bias",
    "classifier.weight": "cls.output.weight",
    "classifier.bias": "cls.output.bias",
}
_POOLINGS: Mapping[str, gguf.PoolingType] = {
    "pooling_mode_mean_tokens": gguf.PoolingType.MEAN,
    "pooling_mode_cls_token": gguf.PoolingType.CLS,
    "pooling_mode_lasttoken": gguf.PoolingType.LAST,
}


def pooling_of(folder: Path) -> gguf.PoolingType | None:
    """Pooling that sentence-transformers uses; None where the folder does not say.

    Raises:
        ConversionError: a way to pool, or a module behind it, that llama.cpp does not have.
    """
    if (folder / "modules.json").is_file():
        _check_modules(folder / "modules.json")
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    fields = read_fields(path)
    modes = [name for name in fields.values if name.startswith("pooling_mode_") and fields.flag(name, False)]
    if len(modes) == 1 and modes[0] in _POOLINGS:
        return _POOLINGS[modes[0]]
    shown = ", ".join(modes) or "no pooling_mode"
    raise ConversionError(f"1_Pooling/config.json: {shown:.200}: it is not converted")


def _check_modules(path: Path) -> None:
    known = (".Transformer", ".Pooling", ".Normalize")
    modules = parse_json(read_bounded(path, CONFIG_BYTES), path.name)
    for module in modules if isinstance(modules, list) else []:
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not kind.endswith(known):
            raise ConversionError(f"{path.name}: type: {str(kind)[:100]!r} is not converted")


def bert(config: Fields, *, ranks: bool) -> Layout:
    """The layout of a BERT.

    Args:
        ranks: whether it has a head that tells how well a document answers a query.

    Raises:
        ConversionError: it is not one that llama.cpp computes.
    """
    layers = config.integer("num_hidden_layers", at_most=_LAYERS)
    dim, ff = config.integer("hidden_size"), config.integer("intermediate_size")
    heads = config.integer("num_attention_heads", at_most=65_536)
    if dim % heads:
        raise config.error("num_attention_heads", f"{dim} does not split into {heads} heads")
    context, vocab = config.integer("max_position_embeddings"), config.integer("vocab_size")
    kinds = config.integer("type_vocab_size", 2, at_most=1024)
    epsilon = config.number("layer_norm_eps", 1e-12)
    act = config.text("hidden_act", "gelu")
    if act != "gelu":
        raise config.error("hidden_act", f"{act[:40]!r}: this architecture has gelu alone")
    position = config.text("position_embedding_type", "absolute")
    if position != "absolute":
        raise config.error("position_embedding_type", f"{position[:40]!r}: absolute ones alone are converted")

    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(context)
        writer.add_embedding_length(dim)
        writer.add_feed_forward_length(ff)
        writer.add_block_count(layers)
        writer.add_head_count(heads)
        writer.add_layer_norm_eps(epsilon)
        writer.add_causal_attention(False)
        writer.add_vocab_size(vocab)
        writer.add_token_type_count(kinds)
        if ranks:
            writer.add_pooling_type(gguf.PoolingType.RANK)

    wanted: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, dim),
        "position_embd.weight": (context, dim),
        "token_types.weight": (kinds, dim),
    }
    for norm in ("token_embd_norm", *(f"blk.{i}.{norm}" for i in range(layers) for norm in _NORMS)):
        wanted |= {f"{norm}.weight": (dim,), f"{norm}.bias": (dim,)}
    dense = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (dim, dim))
    dense |= {"ffn_up": (ff, dim), "ffn_down": (dim, ff)}
    for i in range(layers):
        for name, size in dense.items():
            wanted |= {f"blk.{i}.{name}.weight": size, f"blk.{i}.{name}.bias": size[:1]}
    if ranks:
        named = config.inner("id2label")
        labels = len(named.values) if named is not None else config.integer("num_labels", 2)
        wanted |= {"cls.weight": (dim, dim), "cls.bias": (dim,)}
        wanted |= {"cls.output.weight": (labels, dim), "cls.output.bias": (labels,)}
    ignored = ("embeddings.position_ids", "cls.predictions.", "cls.seq_relationship.")
    return Layout(
        gguf.MODEL_ARCH.BERT,
        layers,
        vocab,
        describe,
        wanted,
        ignored=ignored if ranks else (*ignored, "pooler.dense.weight", "pooler.dense.bias"),
        prefixes=("", "bert."),
        renamed=_HEADS if ranks else {},
        plain=frozenset({"position_embd.weight", "token_types.weight"}),
    )


_OLD_NAMES = {"gamma": "weight", "beta": "bias"}


def modern_name(name: str) -> str:
    """Names of norms as they are called since PyTorch's BERT: the first ones kept TensorFlow's."""
    return re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda match: _OLD_NAMES[match[0]], name)
