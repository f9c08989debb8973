"""llama.cpp's own chain of samplers, up to the draw: what the worker's draws have to be distributed like."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.llama.native import llama
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import generation_pb2

Logits = NDArray[np.float32]

_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaChain:
    """The chain of one request, in the order of llama.cpp's server.

    Args:
        params: every field that is used is set.
        history: tokens before the one that is sampled.
        has_xtc: XTC is applied either always or never: it draws by itself.
    """

    def __init__(
        self,
        vocab: Vocab,
        params: generation_pb2.SamplingParams,
        history: Sequence[int],
        *,
        has_xtc: bool = False,
    ) -> None:
        p = params
        breakers = [text.encode() for text in p.dry_sequence_breakers.texts]
        texts = (ctypes.c_char_p * len(breakers))(*breakers)
        samplers = (
            llama.llama_sampler_init_penalties(
                vocab.size, p.penalty_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            ),
            llama.llama_sampler_init_dry(
                vocab.pointer,
                p.dry_multiplier,
                p.dry_base,
                p.dry_allowed_length,
                p.dry_penalty_last_n,
                texts,
                len(breakers),
            ),
            llama.llama_sampler_init_top_n_sigma(p.top_n_sigma),
            llama.llama_sampler_init_top_k(p.top_k),
            llama.llama_sampler_init_typical(p.typical_p, 0),
            llama.llama_sampler_init_top_p(p.top_p, 0),
            llama.llama_sampler_init_min_p(p.min_p, 0),
            llama.llama_sampler_init_xtc(1.0 if has_xtc else 0.0, p.xtc_threshold, 0, 1),
            llama.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
        )
        self._chain: Any = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for sampler in samplers:
            llama.llama_sampler_chain_add(self._chain, sampler)
        for token in history:
            llama.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        llama.llama_sampler_free(self._chain)

    def logits(self, logits: Logits) -> tuple[NDArray[np.int32], Logits]:
        """(ids that may be drawn, their logits over the temperature)."""
        row = np.zeros(logits.shape[0], _TOKEN)
        row["id"], row["logit"] = np.arange(logits.shape[0]), logits
        data = row.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
        array = llama.llama_token_data_array(data, logits.shape[0], -1, False)
        llama.llama_sampler_apply(self._chain, ctypes.byref(array))
        left = np.frombuffer(
            (llama.llama_token_data * array.size).from_address(ctypes.addressof(array.data.contents)), _TOKEN
        )
        return left["id"].copy(), left["logit"].copy()


def probabilities(
    vocab: Vocab, params: generation_pb2.SamplingParams, history: Sequence[int], logits: Logits
) -> NDArray[np.float64]:
    """Of each token of the vocabulary, under llama.cpp's chain."""
    with_xtc = params.xtc_probability
    return (1.0 - with_xtc) * _of(vocab, params, history, logits, has_xtc=False) + (
        with_xtc * _of(vocab, params, history, logits, has_xtc=True) if with_xtc else 0.0
    )


def _of(
    vocab: Vocab,
    params: generation_pb2.SamplingParams,
    history: Sequence[int],
    logits: Logits,
    *,
    has_xtc: bool,
) -> NDArray[np.float64]:
    chain = LlamaChain(vocab, params, history, has_xtc=has_xtc)
    try:
        ids, left = chain.logits(logits)
    finally:
        chain.close()
    weights = np.exp(left.astype(np.float64) - left.max())
    found = np.zeros(logits.shape[0])
    found[ids] = weights / weights.sum()
    return found
