"""A llama.cpp context: the KV cache of its sequences, and the batch it decodes.

llama.cpp aborts the process on many kinds of bad input (too many tokens or outputs, unknown ids), so
every call here is made only with what `core` has checked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.checks import MAX_SEQUENCES
from inferflux.common.llama.native import first_log_error, llama, reading_log
from inferflux.worker.engine.media.image_note import ImageNote
from inferflux.worker.engine.media.projector import EncodedRun
from inferflux.worker.engine.plan.planner import ScheduledTokens
from inferflux.worker.engine.sampling.prompt_scores import SCORED_ROWS
from inferflux.worker.files.fit import whole_cells
from inferflux.worker.files.kv_types import USUAL, KvTypes

from .batch import Batch, Run
from .pinned_load_log import LoadLog
from .pinned_state import CELL_HEADER_BYTES, StateBytes

_FLASH_ATTENTION = {True: 1, False: 0, None: -1}
# llama.cpp rotates what it quantizes for a cache, unless this variable says 1.
_ABORTED = 2
# LLAMA_ROPE_TYPE_MROPE and _IMROPE, and the numbers of a position then.
_PLANE_ROPES, _AXES = (8, 40), 4
_ROTATION_OFF = "LLAMA_ATTN_ROT_DISABLE"


def _fresh(n_bytes: int) -> StateBytes:
    return np.empty(n_bytes, np.uint8)


class ContextError(Exception):
    """llama.cpp could not make a context: too little memory, most of the time."""


class DecodeError(Exception):
    """llama_decode refused or failed; the KV cache can no longer be trusted."""


class Interrupted(Exception):
    """A step was given up on request; the KV cache is as it was before."""


# Whether a step is to be given up; asked often while llama.cpp computes, on a CPU.
IsInterrupted = Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A loaded LoRA adapter: llama.cpp's handle, and how strongly it is applied."""

    handle: Any
    scale: float


class Context:
    """A context of a loaded model.

    Args:
        cells: of the cache; rounded up to what llama.cpp makes of it.
        sequences: ids that may be used, from 0 on; one more is used here if there is one.
        batch_tokens: most tokens of a call.
        physical_batch: tokens that are computed at a time.
        flash_attention: None leaves it to llama.cpp.
        rows: of logits that a call may want at least.
        is_unified: whether all sequences part the cells; otherwise each has an equal part of them.
        types: of keys and values.

    Attributes:
        flash_attention: whether it is in use.
        note: names the image whose cells are computed.

    Raises:
        ContextError: llama.cpp gave none.
    """

    def __init__(
        self,
        model: Any,
        *,
        cells: int,
        sequences: int,
        batch_tokens: int,
        physical_batch: int,
        flash_attention: bool | None,
        threads: int,
        vocabulary: int,
        rows: int = 0,
        is_unified: bool = True,
        types: KvTypes = USUAL,
    ) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx = whole_cells(cells)
        params.n_batch = max(batch_tokens, sequences)
        params.n_ubatch = min(physical_batch, params.n_batch)
        params.n_seq_max = min(sequences + 1, MAX_SEQUENCES)
        params.n_outputs_max = max(params.n_seq_max, min(rows, params.n_batch))
        if rows:  # a row of every sequence, and those of a prompt
            most = min(params.n_seq_max + SCORED_ROWS, params.n_batch)
            params.n_outputs_max = max(params.n_outputs_max, most)
        params.kv_unified = is_unified
        params.flash_attn_type = _FLASH_ATTENTION[flash_attention]
        params.type_k, params.type_v = types.key_type.ggml_type, types.value_type.ggml_type
        params.n_threads = params.n_threads_batch = threads
        log = LoadLog()
        with reading_log(log.take):
            self._context = llama.llama_init_from_model(model, params)
        if not self._context:
            raise ContextError(f"no context of {params.n_ctx} KV cells: {first_log_error('out of memory?')}")
        self.flash_attention = log.uses_flash_attention(flash_attention)
        self.settings = _settings_of(model, params, types, is_flash=self.flash_attention)
        self._memory = llama.llama_get_memory(self._context)
        self._vocabulary = vocabulary
        # Of logits that a call may want at most.
        self.rows = int(params.n_outputs_max)
        # No sequence uses this id, if there is one.
        self._spare = sequences
        self._has_plane = llama.llama_model_rope_type(model) in _PLANE_ROPES
        self.spare_id = sequences if sequences < MAX_SEQUENCES else None
        self.has_memory = bool(self._memory)
        self.cells = int(llama.llama_n_ctx(self._context))
        self.batch_tokens = int(llama.llama_n_batch(self._context))
        self.physical_batch = int(llama.llama_n_ubatch(self._context))
        self._batch = Batch(self.batch_tokens)
        self.note = ImageNote()
        self._adapter: Adapter | None = None

    def close(self) -> None:
        """Free the cache. Nothing may be called afterwards."""
        llama.llama_free(self._context)

    def use_threads(self, n: int) -> None:
        llama.llama_set_n_threads(self._context, n, n)

    def use_adapter(self, adapter: Adapter | None) -> bool:
        """Have what is computed from now on be changed by an adapter of the model, or by none; whether
        another one was in use. llama.cpp then makes its graphs anew.

        Raises:
            DecodeError: llama.cpp refuses it.
        """
        if adapter is self._adapter:
            return False
        n = 0 if adapter is None else 1
        handles = (llama.llama_adapter_lora_p_ctypes * 1)(adapter.handle) if adapter else None
        scales = (ctypes.c_float * 1)(adapter.scale) if adapter else None
        if llama.llama_set_adapters_lora(self._context, handles, n, scales) != 0:
            raise DecodeError("llama.cpp does not apply the adapter")
        self._adapter = adapter
        return True

    def is_using(self, adapter: Adapter) -> bool:
        """True if it computes with this one."""
        return adapter is self._adapter

    def touch_weights(self) -> None:
        """Read every weight once, those of experts that a token would not choose among them."""
        llama.llama_set_warmup(self._context, True)
        self.decode_tokens(np.zeros(1, np.int32), seq_id=0, position=0)
        llama.llama_set_warmup(self._context, False)
        self.clear()

    def decode(
        self, parts: Iterable[ScheduledTokens], is_interrupted: IsInterrupted | None = None
    ) -> NDArray[np.float32]:
        """Compute these parts of sequences, which follow what their sequence ids hold.

        Args:
            is_interrupted: asked meanwhile, of no more tokens than a physical batch.

        Returns:
            Logits of shape (parts that want logits, vocabulary), in order; valid until the next call.

        Raises:
            Interrupted: because of `is_interrupted`.
            DecodeError: the engine has to start again.
        """
        tokens = []
        for part in parts:
            images = part.sequence.images
            span = images.at(part.sequence.position) if images else None
            if span is None:
                tokens.append(part)
            elif span.encoded is not None:
                with self.note.decoding(span.object):
                    self.decode_image(
                        span.encoded,
                        part.sequence.position - span.first,
                        part.n,
                        seq_id=part.sequence.seq_id,
                        position=images.position(span.first),
                    )
        n_tokens, outputs = self._batch.fill(tokens)
        if n_tokens == 0:
            return np.empty((0, self._vocabulary), np.float32)
        if is_interrupted is None or n_tokens > self.physical_batch:
            return self._compute(n_tokens, outputs)
        callback = llama.ggml_abort_callback(lambda _data: is_interrupted())
        llama.llama_set_abort_callback(self._context, callback, None)
        try:
            return self._compute(n_tokens, outputs)
        finally:
            llama.llama_set_abort_callback(self._context, llama.ggml_abort_callback(), None)

    def decode_image(self, run: EncodedRun, first: int, n: int, *, seq_id: int, position: int) -> None:
        """Compute `n` cells of an image, from the cell `first` of a run on.

        Args:
            position: of the run's first cell.

        Raises:
            DecodeError: as `decode`.
        """
        rows = np.ascontiguousarray(run.embeddings[first : first + n], np.float32)
        positions = run.offsets(first, n) + np.int32(position)
        if run.plane is not None:  # the fourth dimension is not used
            positions = np.concatenate([positions, np.zeros((1, n), np.int32)])
        elif self._has_plane:
            positions = np.repeat(positions, _AXES, axis=0)
        positions = np.ascontiguousarray(positions, np.int32)
        batch = self._batch.embedded(rows, seq_id=seq_id, positions=positions)
        if not run.is_whole:
            self._run(batch)
            return
        llama.llama_set_causal_attn(self._context, False)
        try:
            self._run(batch)
        finally:
            llama.llama_set_causal_attn(self._context, True)

    def decode_tokens(
        self, tokens: NDArray[np.int32], *, seq_id: int, position: int, rows: int = 1
    ) -> NDArray[np.float32]:
        """Compute `tokens` of one sequence; returns the logits after the last `rows` of them, of shape (rows,
        vocabulary).

        Raises:
            DecodeError: as `decode`.
        """
        n = tokens.shape[0]
        self._batch.put(0, tokens, seq_id=seq_id, position=position)
        self._batch.logits[n - rows : n] = 1
        return self._compute(n, rows)

    def decode_runs(self, runs: Iterable[Run]) -> NDArray[np.float32]:
        """Compute these tokens; returns the logits after the last of each run, of shape (runs, vocabulary).

        Raises:
            DecodeError: as `decode`.
        """
        at = n_runs = 0
        for run in runs:
            self._batch.put(at, run.tokens, seq_id=run.seq_id, position=run.position)
            at += run.tokens.shape[0]
            self._batch.logits[at - 1] = 1
            n_runs += 1
        return self._compute(at, n_runs)

    def _compute(self, n_tokens: int, outputs: int) -> NDArray[np.float32]:
        self._run(self._batch.struct(n_tokens))
        if outputs == 0:
            return np.empty((0, self._vocabulary), np.float32)
        pointer = llama.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if not address:
            raise DecodeError("llama.cpp returned no logits")
        raw = (ctypes.c_float * (outputs * self._vocabulary)).from_address(address)
        logits: NDArray[np.float32] = np.ctypeslib.as_array(raw).reshape(outputs, self._vocabulary)
        return logits

    def _run(self, batch: Any) -> None:
        result = llama.llama_decode(self._context, batch)
        if result == _ABORTED:
            raise Interrupted
        if result != 0:
            raise DecodeError(f"llama_decode returned {result}: {first_log_error('no reason given')}")
        llama.llama_synchronize(self._context)

    def clear(self) -> None:
        """Free every cell."""
        llama.llama_memory_clear(self._memory, True)

    def forget(self, seq_id: int, position: int = 0) -> None:
        """Free the KV cells of `seq_id` from `position` on."""
        llama.llama_memory_seq_rm(self._memory, seq_id, position, -1)

    def cut(self, seq_id: int, position: int) -> bool:
        """Remove everything from `position` on; return whether that worked. If not, it is as it was."""
        return bool(llama.llama_memory_seq_rm(self._memory, seq_id, position, -1))

    def share(self, source: int, seq_id: int, cells: int) -> None:
        """Have `seq_id` hold the first `cells` of `source` as well, without a copy."""
        llama.llama_memory_seq_cp(self._memory, source, seq_id, 0, cells)

    def share_whole(self, source: int, seq_id: int) -> None:
        """Have `seq_id` hold all that `source` holds as well. Memory of every kind can do this."""
        llama.llama_memory_seq_cp(self._memory, source, seq_id, -1, -1)

    def positions(self, seq_id: int) -> tuple[int, int]:
        """The first and the last position that `seq_id` holds, by llama.cpp's own view; -1 for none."""
        first = llama.llama_memory_seq_pos_min(self._memory, seq_id)
        return int(first), int(llama.llama_memory_seq_pos_max(self._memory, seq_id))

    def cell_bytes(self) -> int:
        """Bytes of a cell's keys and values, of all layers together; 0 where a sequence has a state instead
        of cells. Must be empty, and is again."""
        sizes = []
        for n in (1, 2):
            self.decode_tokens(np.zeros(n, np.int32), seq_id=0, position=0)
            sizes.append(self.state_size(0))
            self.clear()
        return max(sizes[1] - sizes[0] - CELL_HEADER_BYTES, 0)

    def copy_part_out(
        self, seq_id: int, first: int, end: int, room: Callable[[int], StateBytes] = _fresh
    ) -> StateBytes | None:
        """The state of `seq_id` from position `first` up to `end`; None if llama.cpp cannot give it.

        Args:
            room: gives memory of the given number of bytes. What it raises is raised here.
        """
        llama.llama_memory_seq_cp(self._memory, seq_id, self._spare, first, end)
        try:
            state = room(self.state_size(self._spare))
            return state if self.copy_out(self._spare, state) else None
        finally:
            self.forget(self._spare)

    def append(self, seq_id: int, state: StateBytes) -> bool:
        """Append `state`, of the tokens that follow, to `seq_id`; return whether that worked."""
        if not self.copy_in(self._spare, state):
            return False
        llama.llama_memory_seq_cp(self._memory, self._spare, seq_id, -1, -1)
        self.forget(self._spare)
        return True

    def compact(self) -> bool:
        """Move all filled cells down, in their order, so that no hole is left; whether that went well.

        If not, no sequence has any cells.
        """
        n_bytes = int(llama.llama_state_get_size(self._context))
        state = np.empty(n_bytes, np.uint8)
        pointer = _bytes_pointer(state)
        if llama.llama_state_get_data(self._context, pointer, n_bytes) != n_bytes:
            return False
        return bool(llama.llama_state_set_data(self._context, pointer, n_bytes) == n_bytes)

    def state_size(self, seq_id: int) -> int:
        """Bytes of the state of `seq_id`."""
        return int(llama.llama_state_seq_get_size(self._context, seq_id))

    def copy_out(self, seq_id: int, into: StateBytes) -> bool:
        """Copy the state of `seq_id` to `into`, which has its size; return whether that worked."""
        n_bytes = into.shape[0]
        written = llama.llama_state_seq_get_data(self._context, _bytes_pointer(into), n_bytes, seq_id)
        return bool(written == n_bytes)

    def copy_in(self, seq_id: int, state: StateBytes) -> bool:
        """Copy `state` to `seq_id`; return whether that worked. If not, it is empty."""
        n_bytes = state.shape[0]
        read = llama.llama_state_seq_set_data(self._context, _bytes_pointer(state), n_bytes, seq_id)
        if read != n_bytes:
            self.forget(seq_id)
            return False
        return True


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Settings that decide how state is written, beside the model: see `Identity`."""

    key_type: int
    value_type: int
    flash_attention: bool
    rope: str
    is_rotated: bool


def _settings_of(model: Any, params: Any, types: KvTypes, *, is_flash: bool) -> StateSettings:
    asked = (
        params.rope_scaling_type,
        params.rope_freq_base,
        params.rope_freq_scale,
        params.yarn_ext_factor,
        params.yarn_attn_factor,
        params.yarn_beta_fast,
        params.yarn_beta_slow,
        params.yarn_orig_ctx,
    )
    own = llama.llama_model_rope_type(model), llama.llama_model_rope_freq_scale_train(model)
    is_rotated = types.is_quantized and os.environ.get(_ROTATION_OFF, "0").strip() in ("", "0")
    rope = " ".join(map(str, own + asked))
    return StateSettings(params.type_k, params.type_v, is_flash, rope, is_rotated)


def _bytes_pointer(array: StateBytes) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
