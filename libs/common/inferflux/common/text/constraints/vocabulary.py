"""llguidance's view of a model's vocabulary."""

from __future__ import annotations

import ctypes
from typing import Any

from llguidance import LLTokenizer

from inferflux.common.llama.native import llama
from inferflux.common.llama.vocab import Vocab

# What llguidance takes for a token that stands for no text.
_SPECIAL = b"\xff"


class NoEndError(Exception):
    """The vocabulary has no token that ends a generation."""


def tokenizer_of(vocab: Vocab) -> LLTokenizer:
    """Every token as the text it adds to an answer: control tokens add none, whatever their name looks like.

    It keeps a pointer into `vocab`, which must live longer. Takes about a second for 128,000 tokens.

    Raises:
        NoEndError: no token ends a generation.
    """
    ends = sorted(vocab.eog, key=lambda token: (token != vocab.eos, token))
    if not ends:
        raise NoEndError("the vocabulary has no token that ends an answer")
    make: Any = LLTokenizer.from_llamacpp  # type: ignore[attr-defined]
    tokenizer: LLTokenizer = make(
        tokens=[_text_of(vocab, token) for token in range(vocab.size)],
        vocab_ptr=vocab.pointer,
        tokenize_fptr=ctypes.cast(llama._lib.llama_tokenize, ctypes.c_void_p).value,  # noqa: SLF001
        eos_token=ends,
        slices=None,
    )
    return tokenizer


def _text_of(vocab: Vocab, token: int) -> bytes:
    return vocab.piece(token) or _SPECIAL + vocab.text(token).encode()
