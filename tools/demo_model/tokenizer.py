"""The demo models' tokenizer: a byte-level BPE of 2,048 tokens, trained on the chat data.

Text is split before merging exactly as llama.cpp's ``qwen2`` pre-tokenizer does, so that training and serving
see the same tokens; every digit is a token of its own, which is what makes small arithmetic learnable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.llama_gguf import SPECIALS, Vocabulary

from .chat_data import conversations
from .chatml import pieces
from .words import COMMON

VOCAB_SIZE: Final = 2048
_QWEN2_SPLIT: Final = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def _texts(count: int) -> Iterator[str]:
    yield from (f" {word}" for word in COMMON for _ in range(20))
    for sample in islice(conversations(seed=1, long_share=0.0), count):
        yield from (f"{piece.head}{piece.body}" for piece in pieces(sample.messages, sample.tools))


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(samples: int = 60_000) -> Tokenizer:
    """Learn the merges from the chat data; the special tokens come last, at the highest ids."""
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )
    tokenizer.train_from_iterator(_texts(samples), trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} tokens, not {VOCAB_SIZE}")
    return tokenizer


def from_vocabulary(known: Vocabulary) -> Tokenizer:
    """The tokenizer of a GGUF file's vocabulary: the same ids for the same text."""
    ids = {token: known.id(token) for token in known.tokens}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in known.merges)]
    tokenizer = _byte_level(models.BPE(vocab=ids, merges=merges))
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer saved at ``path``; learned and saved there first when the file is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        train_tokenizer().save(str(path))
    return Tokenizer.from_file(str(path))


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The tokens and merges of a trained tokenizer, as GGUF wants them."""
    ids = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    joined = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    return Vocabulary(sorted(ids, key=ids.__getitem__), joined)
