"""A model's vocabulary: text to token ids and back, without its weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from .native import first_log_error, llama, log_errors

_MAX_SPECIAL_EXTRA = 16
# Of the tokens that llama.cpp reads in a text only where it is told to: unknown and control.
_SPECIAL_ATTRIBUTES = 1 << 0 | 1 << 3
# Of those that it reads in every text.
_USER_DEFINED = 1 << 4

# Letters of several scripts, digits, signs, blanks, an emoji, and every ASCII character.
_TRIAL_TEXT = (
    "".join(map(chr, range(1, 0x180)))
    + " Ünd dann: 2026  \n\n日本語 العربية हिन्दी Привет 한국어 👩‍🔬 e\u0301\t!"
)


# Loading a vocabulary takes a fixed part and a multiple of its file: no more than this, by a margin.
_LOAD_BYTES = 512 << 20
_LOAD_TIMES = 16


def memory_to_load(file_bytes: int) -> int:
    """Most bytes that loading and trying a vocabulary file of this many bytes may take."""
    return _LOAD_BYTES + _LOAD_TIMES * file_bytes


class VocabError(Exception):
    """The file holds no vocabulary llama.cpp can use, or a text could not be tokenized."""


class Vocab:
    """The vocabulary of one loaded llama.cpp model.

    Not safe against ids out of range in llama.cpp itself (it aborts), so every id is checked here.
    `tokenize` may be called from several threads at once.
    """

    def __init__(self, model: Any, *, owns_model: bool) -> None:
        self._model = model
        self._owns_model = owns_model
        self._vocab = llama.llama_model_get_vocab(model)
        self.size: int = llama.llama_vocab_n_tokens(self._vocab)
        self.bos: int = llama.llama_vocab_bos(self._vocab)
        self.eos: int = llama.llama_vocab_eos(self._vocab)
        self.adds_bos: bool = bool(llama.llama_vocab_get_add_bos(self._vocab))
        self.sep: int = llama.llama_vocab_sep(self._vocab)
        self.chat_template = _template(model, None)
        # Some models have another one for conversations with tools.
        self.tool_template = _template(model, b"tool_use")
        self._pieces: dict[int, bytes] = {}
        self._piece_texts: dict[int, str] = {}
        self._eog = frozenset(i for i in range(self.size) if llama.llama_vocab_is_eog(self._vocab, i))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the vocabulary of a GGUF file, its tensors left alone (it may have none).

        Raises:
            VocabError: not a GGUF, or one without a vocabulary.
        """
        log_errors.clear()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise VocabError(f"{path.name}: {first_log_error('not a usable GGUF file')}")
        return cls(model, owns_model=True)

    @property
    def model(self) -> Any:
        """llama.cpp's model that has it."""
        return self._model

    @property
    def template_tokens(self) -> dict[str, str]:
        """The tokens that chat templates name."""
        return {"bos_token": self.text(self.bos), "eos_token": self.text(self.eos)}

    def try_out(self) -> None:
        """Use the vocabulary as requests will: one that llama.cpp cannot work with ends the process here.

        Raises:
            VocabError: it is empty, or it cannot spell its own tokens.
        """
        if self.size <= 0:
            raise VocabError("the vocabulary is empty")
        text = _TRIAL_TEXT + self.text(self.bos) + self.text(self.eos)
        for parse_special in (True, False):
            for token in self.tokenize(text.encode(), add_special=False, parse_special=parse_special):
                self.piece(token)

    def close(self) -> None:
        if self._owns_model and self._model:
            llama.llama_model_free(self._model)
            self._model = None

    @property
    def pointer(self) -> Any:
        """llama.cpp's own, for libraries that read it themselves."""
        return self._vocab

    @property
    def eog(self) -> frozenset[int]:
        """Token ids that end a generation."""
        return self._eog

    @property
    def end_marks(self) -> frozenset[int]:
        """Token ids that may be put at the end of a text that is embedded."""
        return frozenset({self.eos, self.sep} - {-1})

    @property
    def pair_marks(self) -> tuple[list[int], list[int], list[int]]:
        """Token ids before a query, between it and a text, and after that, for a model that ranks."""
        adds_eos = bool(llama.llama_vocab_get_add_eos(self._vocab))
        adds_sep = bool(llama.llama_vocab_get_add_sep(self._vocab))
        eos = self.sep if self.eos == -1 else self.eos
        end = [eos] if adds_eos and eos >= 0 else []
        separator = [self.sep] if adds_sep and self.sep >= 0 else []
        return ([self.bos] if self.adds_bos and self.bos >= 0 else []), end + separator, end or separator

    @property
    def gap_marks(self) -> tuple[int, int, int] | None:
        """Token ids before what precedes a gap, before what follows it, and before what fills it; None where
        the vocabulary lacks one."""
        fim = (llama.llama_vocab_fim_pre, llama.llama_vocab_fim_suf, llama.llama_vocab_fim_mid)
        prefix, suffix, middle = (int(mark(self._vocab)) for mark in fim)
        return None if min(prefix, suffix, middle) < 0 else (prefix, suffix, middle)

    @property
    def longest_token_bytes(self) -> int:
        """Length of the longest token as the file spells it: no token stands for more bytes of text."""
        spellings = (llama.llama_vocab_get_text(self._vocab, i) for i in range(self.size))
        return max((len(spelling or b"") for spelling in spellings), default=0)

    @property
    def control_spellings(self) -> frozenset[str]:
        """Spellings in the file of tokens that only a prompt's structure should have."""
        return self._spellings(_SPECIAL_ATTRIBUTES)

    @property
    def user_spellings(self) -> frozenset[str]:
        """Spellings in the file of tokens that its maker added, for structure or for ordinary text."""
        return self._spellings(_USER_DEFINED)

    def _spellings(self, attributes: int) -> frozenset[str]:
        attributes_of = llama.llama_vocab_get_attr
        return frozenset(self.text(i) for i in range(self.size) if attributes_of(self._vocab, i) & attributes)

    def text(self, token: int) -> str:
        """A token as the file spells it, control tokens too; "" for no such id (-1: no such role)."""
        if not 0 <= token < self.size:
            return ""
        spelling: bytes = llama.llama_vocab_get_text(self._vocab, token) or b""
        return spelling.decode("utf-8", "replace")

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of UTF-8 `text`.

        Args:
            add_special: put BOS (and what else the model wants) around it.
            parse_special: read control tokens such as `<|im_end|>` as such instead of as text.

        Raises:
            VocabError: llama.cpp could not tokenize it.
        """
        room = len(text) + _MAX_SPECIAL_EXTRA
        buffer = (ctypes.c_int32 * room)()
        n = llama.llama_tokenize(self._vocab, text, len(text), buffer, room, add_special, parse_special)
        if n < 0:
            if n == -(2**31):
                raise VocabError("the text has too many tokens")
            room = -n
            buffer = (ctypes.c_int32 * room)()
            n = llama.llama_tokenize(self._vocab, text, len(text), buffer, room, add_special, parse_special)
        if n < 0:
            raise VocabError("the text could not be tokenized")
        return buffer[:n]

    def control_token(self, text: str) -> int | None:
        """The token that is spelled so and adds no text to an answer; None if there is none."""
        if not text:
            return None
        try:
            ids = self.tokenize(text.encode(), add_special=False, parse_special=True)
        except VocabError:
            return None
        is_one = len(ids) == 1 and self.text(ids[0]) == text
        return ids[0] if is_one and not self.piece(ids[0]) else None

    def piece(self, token: int) -> bytes:
        """The bytes `token` stands for; empty for control tokens.

        Raises:
            VocabError: no such token.
        """
        cached = self._pieces.get(token)
        if cached is None:
            cached = self._pieces[token] = self._read_piece(token)
        return cached

    def piece_text(self, token: int) -> str:
        """Text of a token's `piece`: what is not UTF-8 is replaced.

        Raises:
            VocabError: no such token.
        """
        cached = self._piece_texts.get(token)
        if cached is None:
            cached = self._piece_texts[token] = self.piece(token).decode("utf-8", "replace")
        return cached

    def spelling(self, token: int) -> bytes:
        """The bytes of `token` at the beginning of a text, control tokens spelled out.

        Raises:
            VocabError: no such token.
        """
        self._check(token)
        return self._filled(
            lambda buffer, room: llama.llama_detokenize(
                self._vocab, ctypes.byref(ctypes.c_int32(token)), 1, buffer, room, False, True
            )
        )

    def _read_piece(self, token: int) -> bytes:
        self._check(token)
        return self._filled(
            lambda buffer, room: llama.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
        )

    def _check(self, token: int) -> None:
        if not 0 <= token < self.size:
            raise VocabError(f"token id {token} is not in [0, {self.size})")

    @staticmethod
    def _filled(fill: Callable[[Any, int], int]) -> bytes:
        """Bytes that `fill` writes into a buffer; it returns the bytes written, or minus those needed."""
        room = 64
        buffer = ctypes.create_string_buffer(room)
        n = fill(buffer, room)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = fill(buffer, -n)
        return buffer.raw[:n]


def _template(model: Any, name: bytes | None) -> str | None:
    source: bytes | None = llama.llama_model_chat_template(model, name)
    return source.decode("utf-8", "replace") if source else None
