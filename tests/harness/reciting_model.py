"""A model that says one text, token by token, whatever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from .gguf_files import Field, Gguf, Tensor, boolean, f32, numbers, text, texts, u32
from .tokenizers import byte_characters

CONTEXT = 4096
_HEADS = 2
_FF = 32
_BOS, _EOS = 257, 258
# What the prompt ends with.
_LAST_BYTE = ord("\n")


def reciting_model(
    pieces: Sequence[bytes], template: str, *, control: AbstractSet[bytes] = frozenset(), end: str = "</s>"
) -> Gguf:
    """A llama whose prompt ends with a line break, after which it says `pieces`, each a token, and ends.

    Its layer adds nothing. So a token's embedding, its place in the text, alone decides what follows.

    Args:
        pieces: no two are equal; each has two bytes or more, for each byte is a token already.
        template: of its chats.
        control: pieces that are control tokens.
        end: the control token that it ends with.
    """
    assert len(set(pieces)) == len(pieces)
    assert all(len(piece) > 1 for piece in pieces)
    characters = byte_characters()
    spelled = ["".join(characters[byte] for byte in piece) for piece in pieces]
    tokens = [*characters, "he", "<s>", end, *spelled]
    first = len(tokens) - len(pieces)
    said = [_LAST_BYTE, *range(first, len(tokens))]
    dim = -(-len(said) // 64) * 64
    embeddings, output = (np.zeros((len(tokens), dim), np.float32) for _ in range(2))
    for place, (token, following) in enumerate(zip(said, [*said[1:], _EOS], strict=True)):
        embeddings[token, place] = 1.0
        output[following, place] = 4.0
    kinds = [1] * 257 + [3, 3] + [3 if piece in control else 1 for piece in pieces]
    norm = Tensor(np.ones(dim, np.float32))
    metadata: dict[str, Field] = {
        "general.architecture": text("llama"),
        "general.name": text("reciting"),
        "llama.context_length": u32(CONTEXT),
        "llama.embedding_length": u32(dim),
        "llama.block_count": u32(1),
        "llama.feed_forward_length": u32(_FF),
        "llama.attention.head_count": u32(_HEADS),
        "llama.attention.head_count_kv": u32(_HEADS),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
        "llama.rope.dimension_count": u32(dim // _HEADS),
        "llama.rope.freq_base": f32(10_000.0),
        "llama.vocab_size": u32(len(tokens)),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("gpt-2"),
        "tokenizer.ggml.tokens": texts(tokens),
        "tokenizer.ggml.token_type": numbers(5, np.array(kinds, np.int32)),
        "tokenizer.ggml.merges": texts(["h e"]),
        "tokenizer.ggml.bos_token_id": u32(_BOS),
        "tokenizer.ggml.eos_token_id": u32(_EOS),
        "tokenizer.ggml.add_bos_token": boolean(1),
        "tokenizer.chat_template": text(template),
    }
    tensors = {
        "token_embd.weight": Tensor(embeddings),
        "output.weight": Tensor(output),
        "output_norm.weight": norm,
        "blk.0.attn_norm.weight": norm,
        "blk.0.ffn_norm.weight": norm,
        **{
            f"blk.0.{name}.weight": _zeros(dim, dim) for name in ("attn_q", "attn_k", "attn_v", "attn_output")
        },
        "blk.0.ffn_gate.weight": _zeros(_FF, dim),
        "blk.0.ffn_up.weight": _zeros(_FF, dim),
        "blk.0.ffn_down.weight": _zeros(dim, _FF),
    }
    return Gguf(metadata, tensors)


def _zeros(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))
