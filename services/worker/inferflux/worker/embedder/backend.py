"""llama.cpp as an embedder: a loaded model, and a context that pools the texts of a batch.

A step is one call. Texts that share it do not see each other, and each is whole within it: llama.cpp pools
what one physical batch has of a sequence. So the physical batch holds the longest text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from inferflux.common.llama.native import first_log_error, llama, log_errors, reading_log
from inferflux.common.llama.vocab import Vocab
from inferflux.common.process.machine.cores import usable_cores
from inferflux.v1 import engine_pb2, model_pb2
from inferflux.worker.engine.llama.batch import Batch
from inferflux.worker.engine.llama.devices import find_devices
from inferflux.worker.engine.llama.loading import LoadError
from inferflux.worker.engine.llama.pinned_load_log import LoadLog
from inferflux.worker.files.needs import EMBEDDED_AT_ONCE, EMBEDDING_TOKENS

from .jobs import Tokens, Vector

_MEAN: Final = 1
_LAST: Final = 3
_RANK: Final = 4
_UNSPECIFIED: Final = -1
# The fastest of steps of 256 to 2,048 tokens: docs/performance.md.
_CPU_STEP_TOKENS: Final = 256
# Of a trial of the model.
_TRIAL_TOKENS = 64
_NAMES = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}


class EmbedError(Exception):
    """llama.cpp could not compute a step: the engine has to start again."""


class Backend:
    """A loaded model that embeds or ranks.

    Raises:
        LoadError: it cannot.

    Attributes:
        step_tokens: that a step is filled up to. A longer text is a step by itself. On a CPU larger steps
            are no faster: llama.cpp computes how each token of a step attends to all, and masks it.
        flash_attention: whether it is in use.
        most_texts: of a step.
        context_length: of one text, in tokens.
        width: numbers of a vector. A reranker has one number for each document.
    """

    most_texts = EMBEDDED_AT_ONCE

    def __init__(self, config: engine_pb2.EngineConfig) -> None:
        log_errors.clear()
        self._path = config.model_path
        self._is_reranker = config.role == model_pb2.MODEL_ROLE_RERANK
        self._model = self._load(config)
        self.vocab = Vocab(self._model, owns_model=False)
        self.parameters = int(llama.llama_model_n_params(self._model))
        trained = int(llama.llama_model_n_ctx_train(self._model))
        self.context_length = min(config.context_length or EMBEDDING_TOKENS, trained)
        self.batch_tokens = max(self.context_length, EMBEDDING_TOKENS)
        self._context = self._new_context(config, _UNSPECIFIED)
        self._choose_pooling(config)
        self._memory = llama.llama_get_memory(self._context)
        self.width = int(
            llama.llama_model_n_cls_out(self._model)
            if self._is_reranker
            else llama.llama_model_n_embd_out(self._model)
        )
        self._batch = Batch(self.batch_tokens)
        self.step_tokens = self.batch_tokens if _has_gpu(config) else _CPU_STEP_TOKENS
        self._try_out()

    def _load(self, config: engine_pb2.EngineConfig) -> Any:
        params = llama.llama_model_default_params()
        params.n_gpu_layers = config.gpu_layers
        model = llama.llama_model_load_from_file(config.model_path.encode(), params)
        if not model:
            raise LoadError(f"{self._path}: {first_log_error('not a usable GGUF file')}")
        if llama.llama_model_has_encoder(model) and llama.llama_model_has_decoder(model):
            raise LoadError(f"{self._path}: a model of an encoder and a decoder does not embed")
        if llama.llama_model_is_recurrent(model) or llama.llama_model_is_hybrid(model):
            raise LoadError(f"{self._path}: a recurrent model does not embed")
        return model

    def _new_context(self, config: engine_pb2.EngineConfig, pooling: int) -> Any:
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = self.batch_tokens
        params.n_seq_max = self.most_texts
        params.n_outputs_max = self.batch_tokens
        params.kv_unified = True
        params.embeddings = True
        params.pooling_type = pooling
        params.flash_attn_type = 1 if config.flash_attention else 0
        params.n_threads = params.n_threads_batch = config.threads or usable_cores()
        log = LoadLog()
        with reading_log(log.take):
            context = llama.llama_init_from_model(self._model, params)
        if not context:
            why = first_log_error("out of memory?")
            raise LoadError(f"{self._path}: no context of {self.batch_tokens} tokens: {why}")
        self.flash_attention = log.uses_flash_attention(config.flash_attention)
        return context

    def _choose_pooling(self, config: engine_pb2.EngineConfig) -> None:
        """The file's; where it names none, the last token of a model with a memory, or the mean of all."""
        pooling = int(llama.llama_pooling_type(self._context))
        if self._is_reranker != (pooling == _RANK):
            does = "ranks" if pooling == _RANK else "does not rank"
            name = _NAMES.get(pooling, str(pooling))
            raise LoadError(f"{self._path}: its pooling is {name}: it {does}")
        if pooling <= 0:
            has_memory = bool(llama.llama_get_memory(self._context))
            llama.llama_free(self._context)
            self._context = self._new_context(config, _LAST if has_memory else _MEAN)

    def _try_out(self) -> None:
        """Embed tokens from all over the vocabulary.

        Raises:
            LoadError: that gives no vector.
        """
        n = min(_TRIAL_TOKENS, self.context_length, self.vocab.size)
        tokens = np.linspace(0, self.vocab.size - 1, n).astype(np.int32)
        try:
            (vector,) = self.embed([tokens])
        except EmbedError as error:
            raise LoadError(f"{self._path}: {error}") from None
        if not np.isfinite(vector).all():
            raise LoadError(f"{self._path}: its vectors are not finite: weights or metadata are damaged")

    def embed(self, texts: Sequence[Tokens]) -> list[Vector]:
        """A vector of each text, of length 1; of a reranker its numbers as they are.

        Args:
            texts: at most `most_texts`, together at most `batch_tokens`, each at most `context_length`; their
                ids are in the vocabulary.

        Raises:
            EmbedError: llama.cpp failed.
        """
        at = 0
        for seq_id, text in enumerate(texts):
            self._batch.put(at, text, seq_id=seq_id, position=0)
            at += text.size
        self._batch.logits[:at] = 1
        batch = self._batch.struct(at)
        if self._memory:
            llama.llama_memory_clear(self._memory, False)
            code = llama.llama_decode(self._context, batch)
        else:
            code = llama.llama_encode(self._context, batch)
        if code != 0:
            raise EmbedError(f"llama.cpp could not embed {at} tokens: it returned {code}")
        return [self._vector(seq_id) for seq_id in range(len(texts))]

    def _vector(self, seq_id: int) -> Vector:
        pointer = llama.llama_get_embeddings_seq(self._context, seq_id)
        if not pointer:
            raise EmbedError("llama.cpp gave no vector")
        numbers = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        vector: Vector = np.ctypeslib.as_array(numbers, (self.width,)).copy()
        if self._is_reranker:
            return vector
        length = np.float32(np.linalg.norm(vector))
        scaled: Vector = vector / length if length > 0 else vector
        return scaled


def _has_gpu(config: engine_pb2.EngineConfig) -> bool:
    """True if layers go to a GPU."""
    return config.gpu_layers != 0 and any(device.is_gpu for device in find_devices())
