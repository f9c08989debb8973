"""Tiny models of random weights whose memory is of another kind: a sliding window, a recurrent state, both a
state and cells."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from .gguf_files import DIM, FF, HEADS, TOKENS, Gguf, Tensor, f32, numbers, text, texts, tiny_model, u32

WINDOW = 16
CONTEXT = 1024
_STATE = 8
_CONV = 4
_INNER = 2 * DIM
_RANK = 4


def _vocabulary(architecture: str) -> dict[str, bytes]:
    """The metadata of the tiny model that do not depend on its architecture."""
    kept = {k: v for k, v in tiny_model().metadata.items() if k.startswith(("tokenizer.", "general."))}
    return kept | {"general.architecture": text(architecture)}


def sliding_window_model() -> Gguf:
    """A cohere2 of four layers, three of which attend to the last `WINDOW` tokens."""
    draw = np.random.default_rng(8)

    def weights(*shape: int) -> Tensor:
        return Tensor(draw.normal(0, 0.1, shape).astype(np.float32))

    metadata = _vocabulary("cohere2") | {
        "cohere2.context_length": u32(CONTEXT),
        "cohere2.embedding_length": u32(DIM),
        "cohere2.block_count": u32(4),
        "cohere2.feed_forward_length": u32(FF),
        "cohere2.attention.head_count": u32(HEADS),
        "cohere2.attention.head_count_kv": u32(HEADS),
        "cohere2.attention.layer_norm_epsilon": f32(1e-5),
        "cohere2.attention.sliding_window": u32(WINDOW),
        "cohere2.rope.dimension_count": u32(DIM // HEADS),
        "cohere2.rope.freq_base": f32(10_000.0),
        "cohere2.logit_scale": f32(1.0),
        "cohere2.vocab_size": u32(len(TOKENS)),
    }
    norm = Tensor(np.ones(DIM, np.float32))
    tensors = {"token_embd.weight": weights(len(TOKENS), DIM), "output_norm.weight": norm}
    for i in range(4):
        tensors[f"blk.{i}.attn_norm.weight"] = norm
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{i}.{name}.weight"] = weights(DIM, DIM)
        tensors[f"blk.{i}.ffn_gate.weight"] = weights(FF, DIM)
        tensors[f"blk.{i}.ffn_up.weight"] = weights(FF, DIM)
        tensors[f"blk.{i}.ffn_down.weight"] = weights(DIM, FF)
    return Gguf(metadata, tensors)


def seeing_model(architecture: str = "llama") -> Gguf:
    """A model of two layers with the tokens that projectors put around images.

    Args:
        architecture: `llama`; or `qwen2vl`, whose positions have several dimensions (M-RoPE).
    """
    draw = np.random.default_rng(9)

    def weights(*shape: int) -> Tensor:
        return Tensor(draw.normal(0, 0.3, shape).astype(np.float32))

    plain = ["\u010a\u010a", "\u010a"]  # line feeds, as byte-level vocabularies spell them
    marks = ["<fake_token_around_image>", "<global-img>", "<start_of_image>", "<end_of_image>", "[IMG_END]"]
    marks += ["<|vision_start|>", "<|vision_end|>"]
    added = [token for token in plain if token not in TOKENS] + marks
    tokens = [*TOKENS, *added]
    kinds = np.array([1] * (len(TOKENS) - 4) + [1, 3, 3, 1], np.int32)
    kinds = np.append(kinds, [3 if token in marks else 1 for token in added]).astype(np.int32)
    metadata = _vocabulary(architecture) | {
        "tokenizer.ggml.tokens": texts(tokens),
        "tokenizer.ggml.token_type": numbers(5, kinds),
        f"{architecture}.context_length": u32(4096),
        f"{architecture}.embedding_length": u32(DIM),
        f"{architecture}.block_count": u32(2),
        f"{architecture}.feed_forward_length": u32(FF),
        f"{architecture}.attention.head_count": u32(HEADS),
        f"{architecture}.attention.head_count_kv": u32(HEADS),
        f"{architecture}.attention.layer_norm_rms_epsilon": f32(1e-5),
        f"{architecture}.rope.dimension_count": u32(DIM // HEADS),
        f"{architecture}.rope.freq_base": f32(10_000.0),
        f"{architecture}.vocab_size": u32(len(tokens)),
    }
    if architecture == "qwen2vl":
        metadata["qwen2vl.rope.dimension_sections"] = numbers(5, np.array([2, 3, 3, 0], np.int32))
    norm = Tensor(np.ones(DIM, np.float32))
    tensors = {"token_embd.weight": weights(len(tokens), DIM), "output_norm.weight": norm}
    for i in range(2):
        tensors[f"blk.{i}.attn_norm.weight"] = tensors[f"blk.{i}.ffn_norm.weight"] = norm
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{i}.{name}.weight"] = weights(DIM, DIM)
        tensors[f"blk.{i}.ffn_gate.weight"] = weights(FF, DIM)
        tensors[f"blk.{i}.ffn_up.weight"] = weights(FF, DIM)
        tensors[f"blk.{i}.ffn_down.weight"] = weights(DIM, FF)
        if architecture == "qwen2vl":
            for name in ("attn_q", "attn_k", "attn_v"):
                tensors[f"blk.{i}.{name}.bias"] = weights(DIM)
    return Gguf(metadata, tensors)


def recurrent_model() -> Gguf:
    """A mamba of two layers."""
    draw = np.random.default_rng(9)

    def weights(*shape: int) -> Tensor:
        return Tensor(draw.normal(0, 0.1, shape).astype(np.float32))

    metadata = _vocabulary("mamba") | {
        "mamba.context_length": u32(CONTEXT),
        "mamba.embedding_length": u32(DIM),
        "mamba.block_count": u32(2),
        "mamba.feed_forward_length": u32(0),
        "mamba.attention.head_count": u32(0),
        "mamba.attention.layer_norm_rms_epsilon": f32(1e-5),
        "mamba.ssm.conv_kernel": u32(_CONV),
        "mamba.ssm.inner_size": u32(_INNER),
        "mamba.ssm.state_size": u32(_STATE),
        "mamba.ssm.time_step_rank": u32(_RANK),
        "mamba.vocab_size": u32(len(TOKENS)),
    }
    norm = Tensor(np.ones(DIM, np.float32))
    tensors = {"token_embd.weight": weights(len(TOKENS), DIM), "output_norm.weight": norm}
    for i in range(2):
        tensors[f"blk.{i}.attn_norm.weight"] = norm
        tensors[f"blk.{i}.ssm_in.weight"] = weights(2 * _INNER, DIM)
        tensors[f"blk.{i}.ssm_conv1d.weight"] = weights(_INNER, _CONV)
        tensors[f"blk.{i}.ssm_conv1d.bias"] = weights(_INNER)
        tensors[f"blk.{i}.ssm_x.weight"] = weights(_RANK + 2 * _STATE, _INNER)
        tensors[f"blk.{i}.ssm_dt.weight"] = weights(_INNER, _RANK)
        tensors[f"blk.{i}.ssm_dt.bias"] = weights(_INNER)
        tensors[f"blk.{i}.ssm_a"] = Tensor(-np.ones((_INNER, _STATE), np.float32))
        tensors[f"blk.{i}.ssm_d"] = weights(_INNER)
        tensors[f"blk.{i}.ssm_out.weight"] = weights(DIM, _INNER)
    return Gguf(metadata, tensors)


def hybrid_model() -> Gguf:
    """An lfm2 of two layers: a convolution that keeps a state, and attention."""
    draw = np.random.default_rng(10)

    def weights(*shape: int) -> Tensor:
        return Tensor(draw.normal(0, 0.2, shape).astype(np.float32))

    metadata = _vocabulary("lfm2") | {
        "lfm2.context_length": u32(CONTEXT),
        "lfm2.embedding_length": u32(DIM),
        "lfm2.block_count": u32(2),
        "lfm2.feed_forward_length": u32(FF),
        "lfm2.attention.head_count": u32(HEADS),
        "lfm2.attention.head_count_kv": numbers(5, np.array([0, HEADS], np.int32)),
        "lfm2.attention.layer_norm_rms_epsilon": f32(1e-5),
        "lfm2.rope.freq_base": f32(10_000.0),
        "lfm2.shortconv.l_cache": u32(_CONV),
        "lfm2.vocab_size": u32(len(TOKENS)),
    }
    norm, head_norm = Tensor(np.ones(DIM, np.float32)), Tensor(np.ones(DIM // HEADS, np.float32))
    tensors = {"token_embd.weight": weights(len(TOKENS), DIM), "token_embd_norm.weight": norm}
    for i in range(2):
        tensors[f"blk.{i}.attn_norm.weight"] = tensors[f"blk.{i}.ffn_norm.weight"] = norm
        tensors[f"blk.{i}.ffn_gate.weight"] = weights(FF, DIM)
        tensors[f"blk.{i}.ffn_up.weight"] = weights(FF, DIM)
        tensors[f"blk.{i}.ffn_down.weight"] = weights(DIM, FF)
    tensors["blk.0.shortconv.conv.weight"] = weights(DIM, _CONV)
    tensors["blk.0.shortconv.in_proj.weight"] = weights(3 * DIM, DIM)
    tensors["blk.0.shortconv.out_proj.weight"] = weights(DIM, DIM)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensors[f"blk.1.{name}.weight"] = weights(DIM, DIM)
    tensors["blk.1.attn_q_norm.weight"] = tensors["blk.1.attn_k_norm.weight"] = head_norm
    return Gguf(metadata, tensors)


def main() -> None:
    """Write a model of each kind to the folder that is named."""
    folder = Path(sys.argv[1])
    for make in (sliding_window_model, recurrent_model, hybrid_model):
        make().write(folder / f"{make.__name__.removesuffix('_model')}.gguf")


if __name__ == "__main__":
    main()
