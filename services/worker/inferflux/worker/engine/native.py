"""llama.cpp: a model, one context with a unified KV cache, and the batch it decodes.

llama.cpp aborts the process on many kinds of bad input (too many tokens or outputs, unknown ids), so
every call here is made only with what `core` has checked.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.llama.native import complaints, first_complaint, has_gpu, llama
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import engine_pb2

from .batch import Batch
from .planner import StepPlan
from .sequence import StateBytes

_FLASH_ATTENTION = {True: 1, False: 0}
_AUTO_CELLS_PER_SLOT = 1024
_CELL_UNIT = 256
_PHYSICAL_BATCH = 512
_CPU_TILE = 64
_CALIBRATION_PROMPTS = (16, 64, 16, 64)
_CALIBRATION_STEPS = 3
_SMALL_STEP_S = 0.002
_SMALL_STEP_TRIES = 10
# Other threads are woken for a small step if it then takes less than this part of the time of one thread.
_WORTH_WAKING = 0.75


class LoadError(Exception):
    """The model file cannot be served; says why."""


class DecodeError(Exception):
    """llama_decode refused or failed; the KV cache can no longer be trusted."""


class Backend:
    """A loaded model with a context for `sequences` sequences.

    Raises:
        LoadError: no such model, not a generative one, or too little memory.
    """

    def __init__(self, config: engine_pb2.EngineConfig) -> None:
        complaints.clear()
        self._model = _load_model(config)
        self.vocab = Vocab(self._model, owns_model=False)
        trained = int(llama.llama_model_n_ctx_train(self._model))
        self.context_length = config.context_length or trained
        self.slots = config.slots
        self.sequences = config.sequences or config.slots
        self.parameters = int(llama.llama_model_n_params(self._model))
        self._is_thread_count_asked = config.threads > 0
        self._threads = config.threads or len(os.sched_getaffinity(0))
        # Steps of so many tokens are left to one thread.
        self._single_thread_tokens = 0
        self._context = self._new_context(config)
        self._memory = llama.llama_get_memory(self._context)
        if not self._memory:
            raise LoadError("the model keeps no KV cache: it does not generate text")
        self.cells = int(llama.llama_n_ctx(self._context))
        self.context_length = min(self.context_length, self.cells)
        self.batch_tokens = int(llama.llama_n_batch(self._context))
        has_tiles = config.flash_attention and not has_gpu() and self.batch_tokens >= 2 * _CPU_TILE
        # Rows that attention takes at a time; 1 where that makes no difference to whoever fills them.
        self.tile = _CPU_TILE if has_tiles else 1
        self._batch = Batch(self.batch_tokens)

    def _new_context(self, config: engine_pb2.EngineConfig) -> Any:
        params = llama.llama_context_default_params()
        cells = whole_cells(config.kv_cells or max(self.context_length, config.slots * _AUTO_CELLS_PER_SLOT))
        params.n_ctx = cells
        params.n_batch = max(config.batch_tokens, self.sequences)
        params.n_ubatch = min(_PHYSICAL_BATCH, params.n_batch)
        params.n_seq_max = params.n_outputs_max = self.sequences
        params.kv_unified = True
        params.flash_attn_type = _FLASH_ATTENTION[config.flash_attention]
        params.n_threads = params.n_threads_batch = self._threads
        context = llama.llama_init_from_model(self._model, params)
        if not context:
            raise LoadError(f"no context of {cells} KV cells: {first_complaint('out of memory?')}")
        return context

    def warm_up(self) -> list[tuple[int, int, float]]:
        """Touch every weight, so that the first request does not pay for it, and measure the model's speed.

        Returns:
            (prefill tokens, decoding sequences, seconds) of prompts and of single tokens.
        """
        llama.llama_set_warmup(self._context, True)
        self._time_tokens(1)
        llama.llama_set_warmup(self._context, False)
        if not self._is_thread_count_asked:
            self._single_thread_tokens = self._find_single_thread_tokens()
        sizes = [n for n in _CALIBRATION_PROMPTS if n <= min(self.batch_tokens, self.cells)]
        observed = [(n, 0, self._time_tokens(n)) for n in sizes]
        observed += [(0, 1, self._time_tokens(1)) for _ in range(_CALIBRATION_STEPS)]
        return observed

    def _find_single_thread_tokens(self) -> int:
        """How many tokens one thread does so soon that waking others is not worth it: those cores carry the
        tokens to their readers. None where the others save much of that time all the same."""
        n = _CALIBRATION_PROMPTS[0]
        if self._time_tokens(n) > n * _SMALL_STEP_S:
            return 0
        all_s = self._fastest(n)
        llama.llama_set_n_threads(self._context, 1, 1)
        one_s = self._fastest(n)
        llama.llama_set_n_threads(self._context, self._threads, self._threads)
        return 0 if all_s < _WORTH_WAKING * one_s else int(n * _SMALL_STEP_S / one_s)

    def _fastest(self, n: int) -> float:
        """Seconds of a step of `n` tokens; the first few are slower, while the threads come up."""
        return min(self._time_tokens(n) for _ in range(_SMALL_STEP_TRIES))

    def _time_tokens(self, n: int) -> float:
        """Seconds to decode `n` tokens of no meaning, which are forgotten again."""
        self._batch.put(0, np.zeros(n, np.int32), slot=0, position=0)
        self._batch.logits[n - 1] = 1
        began = time.perf_counter()
        self._decode(n)
        seconds = time.perf_counter() - began
        llama.llama_memory_clear(self._memory, True)
        return seconds

    def decode(self, plan: StepPlan) -> NDArray[np.float32]:
        """Compute one step.

        Returns:
            Logits of shape (shares that want logits, vocabulary), in batch order; valid until the next call.

        Raises:
            DecodeError: the engine has to start again.
        """
        at = 0
        outputs = 0
        for share in plan.shares:
            sequence = share.sequence
            at_end = at + share.n
            first = sequence.position
            tokens = sequence.tokens[first : first + share.n]
            self._batch.put(at, tokens, slot=sequence.slot, position=first)
            if share.wants_logits:
                self._batch.logits[at_end - 1] = 1
                outputs += 1
            at = at_end
        self._decode(at)
        if outputs == 0:
            return np.empty((0, self.vocab.size), np.float32)
        pointer = llama.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if not address:
            raise DecodeError("llama.cpp returned no logits")
        raw = (ctypes.c_float * (outputs * self.vocab.size)).from_address(address)
        logits: NDArray[np.float32] = np.ctypeslib.as_array(raw).reshape(outputs, self.vocab.size)
        return logits

    def _decode(self, n_tokens: int) -> None:
        if self._single_thread_tokens:
            threads = 1 if n_tokens <= self._single_thread_tokens else self._threads
            llama.llama_set_n_threads(self._context, threads, threads)
        result = llama.llama_decode(self._context, self._batch.struct(n_tokens))
        if result != 0:
            raise DecodeError(f"llama_decode returned {result}: {first_complaint('no reason given')}")
        llama.llama_synchronize(self._context)

    def forget(self, slot: int, position: int = 0) -> None:
        """Free the KV cells of `slot` from `position` on."""
        llama.llama_memory_seq_rm(self._memory, slot, position, -1)

    def move(self, slot: int, to: int) -> None:
        """Have `to`, which is empty, hold what `slot` holds; no tensor is copied."""
        llama.llama_memory_seq_cp(self._memory, slot, to, -1, -1)
        self.forget(slot)

    def state_size(self, slot: int) -> int:
        """Bytes of the state of `slot`."""
        return int(llama.llama_state_seq_get_size(self._context, slot))

    def copy_out(self, slot: int, n_bytes: int) -> StateBytes | None:
        """The state of `slot`, `n_bytes` long; None if llama.cpp cannot give it."""
        state = np.empty(n_bytes, np.uint8)
        written = llama.llama_state_seq_get_data(self._context, _bytes_pointer(state), n_bytes, slot)
        return state if written == n_bytes else None

    def copy_in(self, slot: int, state: StateBytes) -> bool:
        """Whether `slot` now holds `state`; if not, it is empty."""
        n_bytes = state.shape[0]
        read = llama.llama_state_seq_set_data(self._context, _bytes_pointer(state), n_bytes, slot)
        if read != n_bytes:
            self.forget(slot)
            return False
        return True


def whole_cells(cells: int) -> int:
    """`cells` as llama.cpp rounds them up. It cuts the batch to what was asked for before, which may be
    fewer than there are sequences."""
    return -(-cells // _CELL_UNIT) * _CELL_UNIT


def _bytes_pointer(array: StateBytes) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8))


def _load_model(config: engine_pb2.EngineConfig) -> Any:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = config.gpu_layers
    model = llama.llama_model_load_from_file(config.model_path.encode(), params)
    if not model:
        raise LoadError(f"{config.model_path}: {first_complaint('not a usable GGUF file')}")
    if llama.llama_model_has_encoder(model) or not llama.llama_model_has_decoder(model):
        raise LoadError(f"{config.model_path}: only decoder models can generate")
    return model
