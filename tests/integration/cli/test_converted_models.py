"""What llama.cpp computes with a converted model is what the model computes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.embedding_models import Bert, minilm, minilm_gguf
from harness.hf_folders import BYTE_TOKENS, CONTEXT, TEMPLATE, decoder, write_bert, write_sentencepiece

from inferflux.common.llama.native import llama
from inferflux.common.llama.vocab import Vocab
from inferflux.convert import convert
from inferflux.convert.out_types import OutType
from inferflux.v1 import engine_pb2, model_pb2
from inferflux.worker.embedder.backend import Backend

_F32 = 0
_IDS = [*np.random.default_rng(5).integers(0, len(BYTE_TOKENS), 48).tolist()]
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@contextmanager
def loaded(path: Path) -> Iterator[Any]:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    assert model
    try:
        yield model
    finally:
        llama.llama_model_free(model)


def logits_of(path: Path, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Of every position, by llama.cpp with 32-bit floats."""
    with loaded(path) as model:
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = CONTEXT
        params.type_k = params.type_v = _F32
        params.flash_attn_type = 0
        params.n_threads = params.n_threads_batch = 1
        context = llama.llama_init_from_model(model, params)
        batch = llama.llama_batch_init(len(ids), 0, 1)
        try:
            for at, token in enumerate(ids):
                batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
                batch.seq_id[at][0] = 0
            batch.n_tokens = len(ids)
            assert llama.llama_decode(context, batch) == 0
            size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
            rows = (llama.llama_get_logits_ith(context, at) for at in range(len(ids)))
            return np.stack([np.ctypeslib.as_array(row, (size,)).copy() for row in rows])
        finally:
            llama.llama_batch_free(batch)
            llama.llama_free(context)


MODELS = {
    "llama": decoder("llama"),
    "llama, tied, with biases": decoder("llama", tied=True, attention_bias=True),
    "llama 3.1's rope": decoder("llama", rope_scaling=_LLAMA3, rope_theta=500_000.0),
    "yarn": decoder("qwen2", rope_scaling=_YARN),
    "linear rope": decoder("llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "mistral with wide heads": decoder("mistral", head_dim=32),
    "qwen2": decoder("qwen2"),
    "qwen3": decoder("qwen3", tied=True, head_dim=32),
    "gemma": decoder("gemma", tied=True, head_dim=32),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_decoder_computes_the_same_logits(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    folder = model.write(tmp_path / "model", bf16=name == "llama", shards=name == "qwen2")
    made = convert(folder, tmp_path / "out.gguf", out_type=OutType.F32)
    found, expected = logits_of(made.path, _IDS), model.logits(_IDS)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_texts_become_the_tokens_that_the_folder_says(tmp_path: Path) -> None:
    made = convert(decoder("llama").write(tmp_path / "model"), tmp_path / "out.gguf", out_type=OutType.Q8_0)
    with loaded(made.path) as model:
        vocab = Vocab(model, owns_model=False)
        begin, end = BYTE_TOKENS.index("<|begin|>"), BYTE_TOKENS.index("<|end|>")
        assert (vocab.bos, vocab.eos, vocab.adds_bos) == (begin, end, True)
        assert vocab.chat_template == TEMPLATE
        hello = BYTE_TOKENS.index("hello")
        assert vocab.tokenize(b"hello<|end|>", add_special=True, parse_special=True) == [begin, hello, end]
        # Rows of the embeddings that no token has are tokens that no text has.
        assert vocab.size == len(BYTE_TOKENS) + 2


def merged(text: str, merges: list[tuple[str, str]], vocabulary: dict[str, int]) -> list[int]:
    """BPE as Sennrich et al., 2016: the earliest merge first, the leftmost of several."""
    parts = list(text)
    while pairs := [pair for pair in pairwise(parts) if pair in merges]:
        pair = min(pairs, key=merges.index)
        at = next(i for i in range(len(parts)) if tuple(parts[i : i + 2]) == pair)
        parts[at : at + 2] = ["".join(pair)]
    return [vocabulary[part] for part in parts]


@pytest.mark.parametrize("source", ["tokenizer.json", "tokenizer.model"])
def test_sentencepiece_merges_in_the_order_of_its_merges(tmp_path: Path, source: str) -> None:
    folder = decoder("llama", vocab_size=300).write(tmp_path / "model")
    vocabulary, merges = write_sentencepiece(folder, source)
    made = convert(folder, tmp_path / "out.gguf")
    draw = random.Random(4)
    with loaded(made.path) as model:
        vocab = Vocab(model, owns_model=False)
        for _ in range(50):
            text = "".join(draw.choices("abc ", k=12))
            expected = merged("\u2581" + text.replace(" ", "\u2581"), merges, vocabulary)
            assert vocab.tokenize(text.encode(), add_special=False, parse_special=False) == expected
        # A character that the vocabulary lacks is its bytes.
        assert len(vocab.tokenize("é".encode(), add_special=False, parse_special=False)) == 3


def test_a_reranker_gives_the_score_that_its_head_gives(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "model", "BertForSequenceClassification")
    made = convert(folder, tmp_path / "out.gguf", out_type=OutType.F32)
    config = engine_pb2.EngineConfig(
        model_path=str(made.path), role=model_pb2.MODEL_ROLE_RERANK, threads=1, slots=1
    )
    ids = [2, 5, 6, 7, 3, 8, 9, 3]
    (found,) = Backend(config).embed([np.array(ids, np.int32)])
    assert found == pytest.approx(Bert(folder).score(ids), abs=1e-2)


def test_the_real_embedder_gives_the_vectors_of_its_reference(tmp_path: Path) -> None:
    config = engine_pb2.EngineConfig(
        model_path=str(minilm_gguf(tmp_path)), role=model_pb2.MODEL_ROLE_EMBEDDING, threads=1, slots=1
    )
    backend, reference = Backend(config), minilm()
    text = "Berlin is the capital of Germany."
    ids = reference.tokenize(text)
    assert backend.vocab.tokenize(text.encode(), add_special=True, parse_special=False) == ids
    (found,) = backend.embed([np.array(ids, np.int32)])
    assert float(found @ reference.embed(ids)) > 0.9999
