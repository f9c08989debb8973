"""Greedy answers of llama.cpp alone: one context, one sequence, nothing of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from inferflux.common.llama.native import llama

CELLS: Final = 1024
Logits = npt.NDArray[np.float32]


class Reference:
    """A model with a context of its own, on one thread, in steps of `batch_tokens`."""

    def __init__(self, path: Path, *, batch_tokens: int) -> None:
        params = llama.llama_model_default_params()
        self._model: Any = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = CELLS, batch_tokens, batch_tokens
        settings.n_threads = settings.n_threads_batch = 1
        settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context: Any = llama.llama_init_from_model(self._model, settings)
        if not self._context:
            raise ValueError(f"llama.cpp makes no context for {path}")
        self._n_vocab = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model)))
        self._batch_tokens = batch_tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)

    def rows(self, prompt: Sequence[int], answer: Sequence[int]) -> list[Logits]:
        """The logits before each token of an answer."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        for start in range(0, len(prompt), self._batch_tokens):
            self._decode(prompt[start : start + self._batch_tokens])
        rows = [self._last()]
        for token in answer[:-1]:
            self._decode([token])
            rows.append(self._last())
        return rows

    def _decode(self, tokens: Sequence[int]) -> None:
        array = (llama.llama_token * len(tokens))(*tokens)
        status = llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(tokens)))
        if status:
            raise ValueError(f"llama_decode: {status}")

    def _last(self) -> Logits:
        pointer = llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self._n_vocab,)).copy()
