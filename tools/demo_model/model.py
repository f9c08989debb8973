"""A llama-shaped transformer in PyTorch, laid out so that its weights go into a GGUF file unchanged.

Rotary embedding turns neighbouring pairs of a head's values, as llama.cpp does for the llama architecture;
with that, query and key weights need no reordering at export.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

ROPE_BASE: Final = 10_000.0
NORM_EPSILON: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model; every dimension a multiple of 32 so that Q8_0 blocks fit."""

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ff: int
    vocab: int = 2048
    context: int = 2048

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


SHAPES: Final = {
    "demo": Shape("inferflux-demo", layers=5, dim=256, heads=4, kv_heads=2, ff=512),
    "draft": Shape("inferflux-demo-draft", layers=3, dim=128, heads=2, kv_heads=1, ff=256),
}


def rope_table(length: int, head_dim: int) -> Tensor:
    """Cosines and sines of every position: (2, length, head_dim / 2)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the pairs (0, 1), (2, 3), ... of each head; ``x`` is (batch, heads, length, head_dim)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = table
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """Attention with grouped keys and values, then a gated feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kv_dim = shape.kv_heads * shape.head_dim
        self.shape = shape
        self.attn_norm = nn.RMSNorm(shape.dim, eps=NORM_EPSILON)
        self.attn_q = nn.Linear(shape.dim, shape.dim, bias=False)
        self.attn_k = nn.Linear(shape.dim, kv_dim, bias=False)
        self.attn_v = nn.Linear(shape.dim, kv_dim, bias=False)
        self.attn_output = nn.Linear(shape.dim, shape.dim, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.dim, eps=NORM_EPSILON)
        self.ffn_gate = nn.Linear(shape.dim, shape.ff, bias=False)
        self.ffn_up = nn.Linear(shape.dim, shape.ff, bias=False)
        self.ffn_down = nn.Linear(shape.ff, shape.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        h = self.attn_norm(x)
        q, k, v = (
            layer(h).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for layer in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rotate(q, table), rotate(k, table)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.attn_output(attended.transpose(1, 2).reshape(batch, length, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Transformer(nn.Module):
    """The whole model; the output layer shares the embedding's weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.dim)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.dim, eps=NORM_EPSILON)
        self.register_buffer("table", rope_table(shape.context, shape.head_dim), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if "token_embd" in name else shape.dim**-0.5)
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                nn.init.normal_(weight, std=shape.dim**-0.5 / (2 * shape.layers) ** 0.5)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Hidden states (batch, length, dim); a token attends to the earlier ones of its document."""
        length = tokens.shape[1]
        same = documents[:, None, :, None] == documents[:, None, None, :]
        mask = same & torch.ones(length, length, dtype=torch.bool).tril()
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, self.table[:, :length], mask)
        return self.output_norm(x)

    def loss(self, tokens: Tensor, documents: Tensor, learn: Tensor) -> Tensor:
        """Summed cross-entropy of the tokens whose ``learn`` is true, each predicted from those before it."""
        hidden = self(tokens, documents)[:, :-1]
        wanted = learn[:, 1:]
        logits = hidden[wanted] @ self.token_embd.weight.T
        return functional.cross_entropy(logits.float(), tokens[:, 1:][wanted], reduction="sum")
