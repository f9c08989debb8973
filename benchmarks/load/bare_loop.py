"""llama.cpp with nothing around it: the most tokens per second this machine can give.

The same context as the worker's engine opens, and between two calls of llama_decode nothing but an argmax
and a list append per sequence.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.llama.native import first_log_error, llama, log_errors
from inferflux.worker.engine.llama.batch import Batch

from .prompts import Prompts, middle_of
from .trace import Trace

_BATCH_TOKENS = 2048
_PHYSICAL_BATCH = 512
_CELLS_PER_SLOT = 1024
_WARMUP_TOKENS = 64


class BareLoopError(Exception):
    """llama.cpp could not load or decode; says why."""


@dataclass(slots=True)
class _Sequence:
    slot: int
    trace: Trace
    pending: NDArray[np.int32]
    left: int
    position: int = 0


class BareLoop:
    """A model in this process, and a loop that decodes prompts with it.

    Args:
        slots: most sequences at once; sizes the KV cache as the worker does.
        threads: of llama.cpp; 0 takes every core this process may use.

    Raises:
        BareLoopError: the model does not load.
    """

    def __init__(self, model_path: Path, *, slots: int = 16, threads: int = 0) -> None:
        log_errors.clear()
        self._model = llama.llama_model_load_from_file(
            str(model_path).encode(), llama.llama_model_default_params()
        )
        if not self._model:
            raise BareLoopError(f"{model_path}: {first_log_error('not a usable GGUF file')}")
        params = llama.llama_context_default_params()
        params.n_ctx = max(int(llama.llama_model_n_ctx_train(self._model)), slots * _CELLS_PER_SLOT)
        params.n_batch = _BATCH_TOKENS
        params.n_ubatch = _PHYSICAL_BATCH
        params.n_seq_max = params.n_outputs_max = slots
        params.kv_unified = True
        params.flash_attn_type = 1
        params.n_threads = params.n_threads_batch = threads or len(os.sched_getaffinity(0))
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise BareLoopError(f"{model_path}: {first_log_error('no context')}")
        self._memory = llama.llama_get_memory(self._context)
        vocabulary = llama.llama_model_get_vocab(self._model)
        self.vocabulary_size = int(llama.llama_vocab_n_tokens(vocabulary))
        self._slots = slots
        self._batch = Batch(_BATCH_TOKENS)

    def warm_up(self) -> None:
        """Touch every weight."""
        prompts = Prompts(_WARMUP_TOKENS, middle_of(self.vocabulary_size), seed=2**31)
        self.run(prompts, requests=1, max_tokens=4, concurrency=1)

    def run(self, prompts: Prompts, *, requests: int, max_tokens: int, concurrency: int) -> list[Trace]:
        """Generate `max_tokens` greedy tokens for each prompt, `concurrency` at a time.

        Prompts are decoded whole, together with the running sequences' tokens; an ended sequence's place
        is taken at once.

        Raises:
            BareLoopError: llama_decode failed.
            ValueError: more at a time than there are slots.
        """
        if concurrency > self._slots:
            raise ValueError(f"{concurrency} sequences do not fit into {self._slots} slots")
        # Prompts are made before the clock runs.
        waiting = iter([np.array(prompts[index], np.int32) for index in range(requests)])
        traces: list[Trace] = []
        running = self._start(range(concurrency), waiting, traces, max_tokens)
        while running:
            decoded = self._decode(running)
            ended = [sequence for sequence in decoded if not sequence.left]
            for sequence in ended:
                sequence.trace.ended_s = sequence.trace.arrivals_s[-1]
                llama.llama_memory_seq_rm(self._memory, sequence.slot, -1, -1)
                running.remove(sequence)
            if ended:
                running += self._start((s.slot for s in ended), waiting, traces, max_tokens)
        llama.llama_memory_clear(self._memory, True)
        return traces

    def _start(
        self, slots: Any, waiting: Iterator[NDArray[np.int32]], traces: list[Trace], max_tokens: int
    ) -> list[_Sequence]:
        now = time.perf_counter()
        started = [
            _Sequence(slot, Trace(sent_s=now), prompt, max_tokens)
            for slot, prompt in zip(slots, waiting, strict=False)
        ]
        traces += [sequence.trace for sequence in started]
        return started

    def _decode(self, running: list[_Sequence]) -> list[_Sequence]:
        """One step; returns the sequences that got a token."""
        batch = self._batch
        at = 0
        given: list[tuple[_Sequence, int]] = []
        # Decoding sequences are those with one token pending: they come first in `running`, prompts after.
        for sequence in running:
            n = min(len(sequence.pending), _BATCH_TOKENS - at)
            if n <= 0:
                break
            batch.put(at, sequence.pending[:n], seq_id=sequence.slot, position=sequence.position)
            sequence.position += n
            at += n
            given.append((sequence, n))
        decoded: list[_Sequence] = []
        at_end = 0
        for sequence, n in given:
            at_end += n
            if n == len(sequence.pending):
                batch.logits[at_end - 1] = 1
                decoded.append(sequence)
            else:
                sequence.pending = sequence.pending[n:]
        best = self._compute(at, len(decoded))
        now = time.perf_counter()
        for row, sequence in enumerate(decoded):
            sequence.pending = best[row : row + 1]
            sequence.left -= 1
            sequence.trace.tokens += 1
            sequence.trace.arrivals_s.append(now)
        return decoded

    def _compute(self, n_tokens: int, n_outputs: int) -> NDArray[np.int32]:
        result = llama.llama_decode(self._context, self._batch.struct(n_tokens))
        if result != 0:
            raise BareLoopError(f"llama_decode returned {result}: {first_log_error('no reason given')}")
        llama.llama_synchronize(self._context)
        if not n_outputs:
            return np.empty(0, np.int32)
        address = ctypes.cast(llama.llama_get_logits(self._context), ctypes.c_void_p).value
        raw = (ctypes.c_float * (n_outputs * self.vocabulary_size)).from_address(address or 0)
        logits = np.ctypeslib.as_array(raw).reshape(n_outputs, self.vocabulary_size)
        best: NDArray[np.int32] = logits.argmax(axis=1).astype(np.int32)
        return best
