"""llama.cpp: a model, the main context whose KV cache its sequences fill, and on a CPU a prefill context.

llama.cpp's flash attention on a CPU goes through a batch row by row. Each row looks at every cell of a
unified cache, those of other sequences too. Deep in a prompt, a few rows at a time take three times as long
per row as many. Without flash attention it is a matrix product, as fast per row for few rows as for many, but
over every cell of the cache. So a prefill of several steps is computed in a small context without flash
attention, and copied to the main one by the time it is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.checks import MAX_SEQUENCES
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.llama.native import first_log_error, llama, log_errors, reading_log
from inferflux.common.llama.vocab import Vocab, VocabError
from inferflux.common.process.child.memory_file import path_of
from inferflux.common.process.machine.cores import usable_cores
from inferflux.common.process.machine.free_memory import at_most, free_bytes
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.compaction import MoveCost
from inferflux.worker.engine.kv.envelope import Identity
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.media.image_note import ImageNote
from inferflux.worker.engine.media.projector import Projector, ProjectorError
from inferflux.worker.engine.plan.planner import MOST_DETERMINISTIC_ROWS, StepPlan
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import MOST_ROWS
from inferflux.worker.files.fit import (
    CELLS_PER_SLOT,
    FEWEST_CELLS,
    MOST_PREFILL_CELLS,
    PHYSICAL_BATCH,
    PREFILL_PART,
    CellShape,
    DoesNotFitError,
    cells_in,
    fit_cells,
)
from inferflux.worker.files.kv_types import NUMBER_TYPES, USUAL, KvType, KvTypes
from inferflux.worker.files.mmproj_file import read_projection

from .adapters import AdapterError
from .context import Adapter, Context, ContextError, DecodeError, IsInterrupted
from .deterministic import DeterministicContext
from .devices import find_devices
from .draft_model import DraftModel, DraftModelError
from .load_log import LoadLog
from .placement import Placement, PlacementError
from .prefill_context import PrefillContext
from .rpc_servers import RpcServerError, add_servers
from .sharing_trial import can_cut_states, find_sharing
from .state import StateBytes, UnknownLayout, first_positions
from .trial import TRIAL_ROWS, trial_tokens
from .trials import Timing, Trials, known_trials

# Tokens of all parts of the vocabulary, decoded once before anything is served.
_TRIAL_TOKENS = 64
# Where an engine before this one has decoded those.
_FEW_TRIAL_TOKENS = 4
# Without flash attention the scores of all rows and cells are kept for a moment. Rows at a time are
# limited so that these take no more than this many bytes, but some rows are computed in any case.
_SCORES_BYTES = 128 << 20
_SCORE_BYTES = 4
_FEWEST_PREFILL_ROWS = 128
_SUFFIX_PER_THREAD = 8
_CALIBRATION_PROMPTS = (16, 64, 16, 64)
_CALIBRATION_STEPS = 3
# What a used cell costs a decoded token is timed with this many tokens, among this many cells of others.
_CELL_TRIAL_ROWS = 8
_CELL_TRIES = 15
_CELL_TRIAL_S = 0.5
_CELL_TRIAL_TOKENS = 64
_CELL_TRIAL_CELLS = 2048
_MOVE_TRIAL_COPIES = 8
# llama.cpp overwrites the whole cache for a move: where that takes this long, there are none.
_LONGEST_MOVE_S = 0.2
# Steps of these numbers of rows are timed before drafts are verified, again and again for this long at most.
_ROW_TRIALS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 63)
_ROW_TRIALS_S = 0.5
_ROW_TRIES = 5
_FEWEST_ROW_TRIALS = 3
_SMALL_STEP_S = 0.002
_SMALL_STEP_TRIES = 10
# Other threads are woken for a small step if it then takes less than this part of the time of one thread.
_WORTH_WAKING = 0.75
# Addresses that threads and allocators reserve beyond the memory they use.
_RESERVED_BYTES = 2 << 30
_METADATA_BYTES = 256
# The KV cache lies in memory of the GPU then: llama.cpp says what does not fit there.
_GPU_DECIDES = 1 << 60
_FEWEST_BATCH_TOKENS = 8
# What llama.cpp says of types that it does not take for the keys or the values of a model.
_TYPES_REFUSED = re.compile(r"\b[KV] cache|cache types\b")


class LoadError(Exception):
    """The model file cannot be served; says why."""


class Backend:
    """A loaded model with a context for `sequences` sequences.

    Raises:
        LoadError: no such model, not a generative one, or too little memory.
    """

    def __init__(self, config: engine_pb2.EngineConfig, *, is_unified: bool = True) -> None:
        log_errors.clear()
        self._is_unified = is_unified
        self._placement = _placement_of(config)
        log = LoadLog()
        with reading_log(log.take):
            self._model = _load_model(config, self._placement)
        self.vocab = Vocab(self._model, owns_model=False)
        trained = int(llama.llama_model_n_ctx_train(self._model))
        self.context_length = config.context_length or trained
        self.slots = config.slots
        self.sequences = config.sequences or config.slots
        self.kv_types = _types_of(config)
        self.parameters = int(llama.llama_model_n_params(self._model))
        self._is_thread_count_asked = config.threads > 0
        self._threads = config.threads or usable_cores()
        # Steps of at most this many tokens are left to one thread.
        self._single_thread_tokens = 0
        with reading_log(log.take):
            self._main = self._new_main(config)
        self.device_context = self._placement.report(log, config, flash_attention=self._main.flash_attention)
        if not self._main.has_memory:
            raise LoadError(f"{config.model_path}: the model keeps no KV cache: it does not generate text")
        self.cells = self._main.cells
        self._known = known_trials(config, self.cells)
        # What is found here, or was found before.
        self.trials = self._known or Trials(self.cells)
        self._check_logits(config.model_path, _TRIAL_TOKENS if self._known is None else _FEW_TRIAL_TOKENS)
        self.kv_bytes = self.cells * self._main.cell_bytes()
        self.context_length = min(self.context_length, self.cells)
        self.batch_tokens = self._main.batch_tokens
        if self._known is None:
            tokens = trial_tokens(self.vocab)
            self.trials.sharing = sharing = self._find_sharing(tokens)
            self.trials.cuts_states = sharing.is_divisible and can_cut_states(self._main, tokens)
        self.sharing = self.trials.sharing
        self.cuts_states = self.trials.cuts_states
        self.cell_s = 0.0
        self.move_cost: MoveCost | None = None
        self.prefill_context_error = ""
        self._prefill = self._new_prefill_context(config)
        self._deterministic: DeterministicContext | None = None
        self._deterministic_error = ""
        self._adapters: dict[str, Adapter] = {}
        # Steps so far that another adapter computed than the step before.
        self.adapter_switches = 0
        self.identity = self._identity(config)
        self.projector = self._new_projector(config)

    def note_images(self, note: ImageNote) -> None:
        """Have each image named in `note` while its cells are computed."""
        self._main.note = note

    def _new_projector(self, config: engine_pb2.EngineConfig) -> Projector | None:
        """Return the projector that encodes images; None where none is asked for.

        Raises:
            LoadError: it cannot be used with this model.
        """
        if not config.mmproj_path:
            return None
        try:
            projection = read_projection(Path(config.mmproj_path), field="mmproj")
            vocab = Vocab.load(Path(config.model_path))
            with path_of(projection.skeleton) as skeleton:
                projector = Projector(
                    config.mmproj_path,
                    self._model,
                    skeleton=str(skeleton),
                    vocab=vocab,
                    width=int(llama.llama_model_n_embd_inp(self._model)),
                    most_whole=min(self._main.batch_tokens, self._main.physical_batch),
                    threads=self._threads,
                    flash_attention=self._main.flash_attention,
                    use_gpu=self._placement.offloads_here,
                    is_known=self._known is not None,
                )
            vocab.close()
            return projector
        except (ProjectorError, VocabError, InvalidArgument) as error:
            raise LoadError(f"{config.model_path}: its mmproj {config.mmproj_path}: {error}") from None

    @property
    def prefill_cells(self) -> int:
        """Cells of the prefill context; 0 where there is none."""
        return self._prefill.context.cells if self._prefill else 0

    @property
    def shortest_suffix(self) -> int:
        """Fewest tokens after a long prefix that the prefill context computes sooner, copies included: one
        thread copies, all compute. 0 where there is none."""
        return _SUFFIX_PER_THREAD * self._threads if self._prefill else 0

    @property
    def long_step_tokens(self) -> int:
        """Most tokens of a step that can be given up; 0 where none can. What it filled is cut off."""
        return self._prefill.context.physical_batch if self._prefill and self.sharing.is_divisible else 0

    @property
    def long_mixed_tokens(self) -> int:
        """The same of a step in the main context. A GPU is not asked whether to go on."""
        can_cut = self.sharing.kind in (Sharing.FULL, Sharing.WINDOW)
        return self._main.physical_batch if can_cut and not self._placement.offloads else 0

    def _new_main(self, config: engine_pb2.EngineConfig) -> Context:
        """The main context.

        Raises:
            LoadError: it does not fit into memory, or the model's keys and values cannot be kept so.
        """
        free = _GPU_DECIDES if self._placement.offloads else free_bytes()
        try:
            with contextlib.nullcontext() if self._placement.offloads else at_most(free + _RESERVED_BYTES):
                wanted, least, kept_bytes = self._asked_cells(config)
                cells = fit_cells(wanted, least, CellShape(kept_bytes, PHYSICAL_BATCH), free)
                return self._new_context(
                    config,
                    cells=cells,
                    sequences=self.sequences,
                    batch_tokens=config.batch_tokens,
                    rows=MOST_ROWS,
                )
        except (ContextError, DoesNotFitError) as error:
            raise LoadError(f"{config.model_path}: {self._blamed(config, str(error))}: {error}") from None

    def _new_context(
        self,
        config: engine_pb2.EngineConfig,
        *,
        cells: int,
        sequences: int,
        batch_tokens: int,
        rows: int = 0,
    ) -> Context:
        return Context(
            self._model,
            cells=cells,
            sequences=sequences,
            batch_tokens=batch_tokens,
            physical_batch=PHYSICAL_BATCH,
            flash_attention=self._placement.flash_attention(config),
            threads=self._threads,
            vocabulary=self.vocab.size,
            rows=rows,
            is_unified=self._is_unified,
            types=self.kv_types,
        )

    def _asked_cells(self, config: engine_pb2.EngineConfig) -> tuple[int, int, int]:
        """(cells that are wanted, the fewest that will do, what keys and values of one take).

        Raises:
            ContextError: as `_new_context`.
            DoesNotFitError: too few cells have room in the bytes that were asked for.
        """
        if config.kv_bytes:
            kept_bytes = self._measure_cell(config)
            cells = cells_in(config.kv_bytes, kept_bytes, config.context_length or FEWEST_CELLS)
            return cells, cells, kept_bytes
        wanted = config.kv_cells or max(self.context_length, config.slots * CELLS_PER_SLOT)
        least = config.kv_cells or config.context_length or min(wanted, FEWEST_CELLS)
        return wanted, least, self._estimate_cell()

    def _measure_cell(self, config: engine_pb2.EngineConfig) -> int:
        """Measure the bytes of a cell's keys and values, by a context that is as small as one can be."""
        trial = self._new_context(config, cells=FEWEST_CELLS, sequences=1, batch_tokens=_FEWEST_BATCH_TOKENS)
        try:
            return trial.cell_bytes() if trial.has_memory else 0
        finally:
            trial.close()

    def _estimate_cell(self) -> int:
        """The same by the model's metadata; no less than it is where all layers are alike."""
        heads = int(llama.llama_model_n_head_kv(self._model))
        width = int(llama.llama_model_n_embd(self._model)) // max(
            int(llama.llama_model_n_head(self._model)), 1
        )
        keys = self._metadata_number("attention.key_length", width)
        values = self._metadata_number("attention.value_length", width)
        types = self.kv_types
        of_layer = types.key_type.bytes_of(heads * keys) + types.value_type.bytes_of(heads * values)
        return int(llama.llama_model_n_layer(self._model)) * of_layer

    def _blamed(self, config: engine_pb2.EngineConfig, error: str) -> str:
        """The setting that stands in the way, and its value."""
        if self.kv_types != USUAL and _TYPES_REFUSED.search(error):
            types = self.kv_types
            return f"INFERFLUX_WORKER_KV_TYPE_K is {types.keys}, INFERFLUX_WORKER_KV_TYPE_V is {types.values}"
        if config.kv_bytes:
            return f"INFERFLUX_WORKER_KV_BYTES is {config.kv_bytes}"
        if config.kv_cells:
            return f"INFERFLUX_WORKER_KV_CELLS is {config.kv_cells}"
        return f"the context length is {self.context_length}"

    def _metadata_number(self, name: str, default: int) -> int:
        """An integer field of the model's architecture; `default` where the file has none."""
        architecture = self._metadata("general.architecture")
        found = self._metadata(f"{architecture}.{name}")
        return int(found) if found.isdigit() else default

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(_METADATA_BYTES)
        n = llama.llama_model_meta_val_str(self._model, key.encode(), buffer, _METADATA_BYTES)
        return buffer.value.decode("utf-8", "replace") if n > 0 else ""

    def _check_logits(self, path: str, most: int) -> None:
        """Decode tokens from all over the vocabulary, `most` of them.

        Raises:
            LoadError: they give no logits a token could be chosen by.
        """
        n = min(most, self._main.batch_tokens, self.vocab.size)
        tokens = np.linspace(0, self.vocab.size - 1, n).astype(np.int32)
        try:
            logits = self._main.decode_tokens(tokens, seq_id=0, position=0)
        except DecodeError as error:
            raise LoadError(f"{path}: the model cannot decode: {error}") from None
        if not np.isfinite(logits.max()):
            raise LoadError(
                f"{path}: the model gives no finite logits: its weights or its metadata are damaged"
            )
        self._main.clear()

    def _identity(self, config: engine_pb2.EngineConfig) -> Identity:
        """Identity of the main context's state."""
        settings = self._main.settings
        return Identity(
            # The cells of one image differ by projector.
            model="+".join(filter(None, (config.model_digest, config.mmproj_digest))),
            llama_cpp=f"{version('llama-cpp-python')} {llama.LLAMA_STATE_SEQ_VERSION}",
            key_type=settings.key_type,
            value_type=settings.value_type,
            flash_attention=settings.flash_attention,
            rope=settings.rope,
            is_rotated=settings.is_rotated,
        )

    def _new_prefill_context(self, config: engine_pb2.EngineConfig) -> PrefillContext | None:
        """The prefill context; None where there is no need of one, or `prefill_context_error` says why."""
        cells = min(self.context_length, self.cells // PREFILL_PART, MOST_PREFILL_CELLS)
        if config.HasField("prefill_cells"):
            cells = config.prefill_cells
        if cells == 0 or not config.flash_attention or self._placement.offloads:
            return None
        if self.sharing.kind in (Sharing.CHECKPOINTS, Sharing.NONE):
            self.prefill_context_error = f"a part of a sequence cannot be copied to it: {self.sharing.reason}"
            return None
        if self.sequences == MAX_SEQUENCES:
            self.prefill_context_error = f"all {MAX_SEQUENCES} sequence ids are in use: it needs one"
            return None
        if self.kv_types.value_type.is_quantized:
            self.prefill_context_error = (
                f"it has no flash attention, and nothing else takes values in {self.kv_types.values}"
            )
            return None
        try:
            context = Context(
                self._model,
                cells=cells,
                sequences=self.sequences,
                batch_tokens=self.batch_tokens,
                physical_batch=self._prefill_rows(cells),
                flash_attention=False,
                threads=self._threads,
                vocabulary=self.vocab.size,
                rows=TRIAL_ROWS,
                types=self.kv_types,
            )
        except ContextError as error:
            self.prefill_context_error = str(error)
            return None
        prefill = PrefillContext(self._main, context)
        if self._known is None:
            self.trials.prefill_error = prefill.why_not(trial_tokens(self.vocab))
            self.trials.prefill_works = not self.trials.prefill_error
        if self.trials.prefill_works:
            return prefill
        prefill.close()
        self.prefill_context_error = self.trials.prefill_error or "it was not tried"
        return None

    def open_deterministic(self) -> str:
        """Make the context of deterministic requests, unless it was made; why there is none, or empty."""
        if self._deterministic is None and not self._deterministic_error:
            self._deterministic_error = self._make_deterministic()
        return self._deterministic_error

    def _make_deterministic(self) -> str:
        if self._placement.offloads:
            return "layers of the model are on a GPU"
        if not self._main.flash_attention:
            return "the model is served without flash attention"
        if not self.sharing.is_divisible:
            return self.sharing.reason
        if self.sequences == MAX_SEQUENCES:
            return f"all {MAX_SEQUENCES} sequence ids are in use: it needs one"
        cells = min(self.context_length, self.cells) + 1
        if cells * self.kv_bytes // self.cells > free_bytes():
            return f"there is no memory for {cells} KV cells of their own"
        try:
            context = Context(
                self._model,
                cells=cells,
                sequences=self.sequences,
                batch_tokens=PHYSICAL_BATCH,
                physical_batch=PHYSICAL_BATCH,
                flash_attention=True,
                threads=self._threads,
                vocabulary=self.vocab.size,
                rows=MOST_DETERMINISTIC_ROWS,
                types=self.kv_types,
            )
        except ContextError as error:
            return str(error)
        made = DeterministicContext(context, self.sequences)
        if not made.keeps_its_word(trial_tokens(self.vocab)):
            made.close()
            return "on this machine the model's logits depend on what else a step holds"
        self._deterministic = made
        return ""

    def admits(self, sequence: Sequence) -> bool:
        """Return whether the deterministic context has room for all of a sequence, and keep that room."""
        room = sequence.prompt_tokens + sequence.max_tokens
        return self._deterministic is not None and self._deterministic.admits(sequence.seq_id, room)

    def _prefill_rows(self, cells: int) -> int:
        """Rows that a prefill context of `cells` cells computes at a time: with more of them its threads wait
        less for each other."""
        heads = max(int(llama.llama_model_n_head(self._model)), 1)
        fitting = _SCORES_BYTES // (heads * cells * _SCORE_BYTES)
        return max(_FEWEST_PREFILL_ROWS, min(fitting, PHYSICAL_BATCH))

    def warm_up(self) -> list[Timing]:
        """Touch every weight, so that the first request does not pay for it, and measure the model's speed.

        Returns:
            Timings of prompts and of single tokens.
        """
        self._main.touch_weights()
        if self._known is None:
            self._measure()
        found = self.trials
        self._single_thread_tokens = found.single_thread_tokens
        self.cell_s, self.move_cost = found.cell_s, found.move_cost
        return list(found.timings)

    def _measure(self) -> None:
        """Measure the model's speed."""
        found = self.trials
        if not self._is_thread_count_asked:
            found.single_thread_tokens = self._find_single_thread_tokens()
            self._single_thread_tokens = found.single_thread_tokens
        # A recurrent model has no cells that a token would look at.
        if not self.sharing_error and not llama.llama_model_is_recurrent(self._model):
            found.cell_s = self._time_cell()
            found.move_cost = self.move_cost
        timings = self._prefill_timings(self._main, in_prefill_context=False)
        if self._prefill:
            timings += self._prefill_timings(self._prefill.context, in_prefill_context=True)
        found.timings = timings + [
            Timing(0, 1, _time_tokens(self._main, 1)) for _ in range(_CALIBRATION_STEPS)
        ]

    def row_times(self) -> dict[int, float]:
        """Seconds of steps that verify drafts, by their rows: of few for a large model. After `warm_up`.

        The main context must be empty, and is again.
        """
        if self._known is None or not self._known.row_times:
            self.trials.row_times = self._measure_rows()
        return self.trials.row_times

    def _measure_rows(self) -> dict[int, float]:
        sizes = [n for n in _ROW_TRIALS if n <= min(self.verified_rows, self._main.cells)]
        fastest: dict[int, float] = {}
        began = time.perf_counter()
        for _ in range(_ROW_TRIES):
            for n in sizes:
                if len(fastest) >= _FEWEST_ROW_TRIALS and time.perf_counter() - began > _ROW_TRIALS_S:
                    return fastest
                fastest[n] = min(self._time_verifying(n), fastest.get(n, math.inf))
        return fastest

    def _time_verifying(self, rows: int) -> float:
        """Seconds of a step of these rows, all with logits."""
        self._choose_threads(rows)
        began = time.perf_counter()
        self._main.decode_tokens(np.zeros(rows, np.int32), seq_id=0, position=0, rows=rows)
        seconds = time.perf_counter() - began
        self._main.clear()
        return seconds

    def _prefill_timings(self, context: Context, *, in_prefill_context: bool) -> list[Timing]:
        sizes = [n for n in _CALIBRATION_PROMPTS if n <= min(context.batch_tokens, context.cells)]
        return [Timing(n, 0, _time_tokens(context, n), in_prefill_context) for n in sizes]

    def _find_single_thread_tokens(self) -> int:
        """Find the most tokens that one thread does so soon that waking others is not worth it: those cores
        carry the tokens to their readers. None where the others save much of that time all the same."""
        n = _CALIBRATION_PROMPTS[0]
        if _time_tokens(self._main, n) > n * _SMALL_STEP_S:
            return 0
        all_s = self._fastest(n)
        self._main.use_threads(1)
        one_s = self._fastest(n)
        self._main.use_threads(self._threads)
        return 0 if all_s < _WORTH_WAKING * one_s else int(n * _SMALL_STEP_S / one_s)

    def _fastest(self, n: int) -> float:
        """Seconds of a step of `n` tokens; the first few are slower, while the threads come up."""
        return min(_time_tokens(self._main, n) for _ in range(_SMALL_STEP_TRIES))

    def decode(self, plan: StepPlan, is_interrupted: IsInterrupted | None = None) -> NDArray[np.float32]:
        """Compute one step.

        Args:
            is_interrupted: whether to give the step up, if it is a long one.

        Returns:
            Logits of shape (parts that want logits, vocabulary), in batch order; valid until the next call.

        Raises:
            Interrupted: because of `is_interrupted`.
            DecodeError: the engine has to start again.
        """
        adapter = self._adapters[plan.adapter] if plan.adapter else None
        if plan.is_deterministic and self._deterministic:
            self.adapter_switches += self._deterministic.use_adapter(adapter)
            return self._deterministic.decode(plan.parts)
        context = self._prefill.context if plan.in_prefill_context and self._prefill else self._main
        self.adapter_switches += context.use_adapter(adapter)
        if plan.in_prefill_context and self._prefill:
            return self._prefill.decode(plan.parts, is_interrupted if plan.is_long else None)
        self._choose_threads(plan.n_tokens)
        return self._main.decode(plan.parts, is_interrupted if plan.is_long else None)

    def load_adapter(self, adapter: engine_pb2.EngineAdapter) -> None:
        """Load a LoRA adapter, under its digest.

        Raises:
            AdapterError: it does not fit the model.
        """
        log_errors.clear()
        handle = llama.llama_adapter_lora_init(self._model, adapter.path.encode())
        if not handle:
            raise AdapterError(f"{adapter.path}: {first_log_error('not a usable adapter')}")
        self._adapters[adapter.digest] = Adapter(handle, adapter.scale)

    def free_adapter(self, digest: str) -> None:
        """Free an adapter that no sequence has any more."""
        adapter = self._adapters.pop(digest)
        contexts = (self._main, self._prefill.context if self._prefill else None, self._deterministic)
        for context in contexts:
            if context is not None and context.is_using(adapter):
                context.use_adapter(None)
        llama.llama_adapter_lora_free(adapter.handle)

    def _choose_threads(self, tokens: int) -> None:
        """Choose the threads for a step of this many tokens in the main context."""
        if self._single_thread_tokens:
            self._main.use_threads(1 if tokens <= self._single_thread_tokens else self._threads)

    def _find_sharing(self, tokens: NDArray[np.int32]) -> PrefixSharing:
        """Find the part of a sequence that another one can begin with."""
        if not self._is_unified:
            return PrefixSharing(Sharing.NONE, "each sequence has cells of its own")
        found = find_sharing(self._main, tokens, int(llama.llama_model_n_swa(self._model)))
        log_errors.clear()  # those of what was tried and cannot be
        return found

    @property
    def sharing_error(self) -> str:
        """Reason why prefixes cannot be cached; empty if they can."""
        if self.sequences < 2:
            return "there is one sequence id, and none for cached prefixes"
        return self.sharing.reason if self.sharing.kind is Sharing.NONE else ""

    def new_draft_model(self, config: engine_pb2.EngineConfig) -> DraftModel:
        """The draft model that is asked for, with room for as many tokens as this model has.

        Raises:
            LoadError: it cannot draft for this model.
        """
        try:
            return DraftModel(
                config.draft_model_path,
                self.vocab,
                sequences=self.slots,
                cells=self.cells,
                batch_tokens=self.batch_tokens,
                threads=self._threads,
                gpu_layers=config.gpu_layers,
                flash_attention=self._placement.flash_attention(config),
                adjust=self._placement.keep_local,
            )
        except (DraftModelError, DecodeError) as error:
            asked = f"INFERFLUX_WORKER_DRAFT_MODEL is {config.draft_model_path}"
            raise LoadError(f"{config.model_path}: {asked}: {error}") from None

    @property
    def verified_rows(self) -> int:
        """Most rows of a step that verifies drafts."""
        return min(MOST_ROWS, self._main.rows, self._main.batch_tokens)

    @property
    def speculation_error(self) -> str:
        """Reason why drafts cannot be verified: rejected tokens have to be removed. Empty if they can."""
        return "" if self.sharing.is_divisible else self.sharing.reason

    def share(self, source: int, seq_id: int, cells: int) -> None:
        """Have `seq_id` hold the first `cells` of `source` as well: all, where no part can be shared."""
        if self.sharing.kind is Sharing.CHECKPOINTS:
            self._main.share_whole(source, seq_id)
        else:
            self._main.share(source, seq_id, cells)

    def positions(self, seq_id: int) -> tuple[int, int]:
        """The first and the last position that `seq_id` holds, by llama.cpp's own view; -1 for none."""
        return self._main.positions(seq_id)

    def _time_cell(self) -> float:
        """Seconds that each cell of another sequence adds to the step of a token.

        A few computed tokens are copied to many sequences: that fills cells in no time.
        """
        context = self._main
        n = min(_CELL_TRIAL_TOKENS, context.cells // 4, context.batch_tokens)
        row_id = self.sequences - 1
        empty_s = self._time_rows(row_id)
        context.decode_tokens(np.zeros(n, np.int32), seq_id=0, position=0)
        state = np.empty(context.state_size(0), np.uint8)
        others = range(1, min(row_id, context.cells // n - 1, _CELL_TRIAL_CELLS // n))
        is_filled = context.copy_out(0, state) and all(context.copy_in(seq_id, state) for seq_id in others)
        filled_s = self._time_rows(row_id) if is_filled else empty_s
        context.clear()
        if self.sharing.is_divisible:  # each token has a cell, which can lie anywhere
            self.move_cost = self._time_moves(state, n)
        return max(filled_s - empty_s, 0.0) / (n * (1 + len(others)) * _CELL_TRIAL_ROWS)

    def _time_moves(self, state: StateBytes, n: int) -> MoveCost | None:
        """Measure what moving cells takes: none of them, and copies of the `n` in `state`. None if it takes
        too long.

        Must be empty, and is again.
        """
        context = self._main
        none_s = self.compact()
        if none_s > _LONGEST_MOVE_S:
            return None
        copies = min(_MOVE_TRIAL_COPIES, self.sequences, context.cells // n)
        is_filled = all(context.copy_in(seq_id, state) for seq_id in range(copies))
        some_s = self.compact()
        context.clear()
        return MoveCost(none_s, max(some_s - none_s, 0.0) / (n * copies)) if is_filled else None

    def compact(self) -> float:
        """Move all filled cells of the main context down, in their order; returns the seconds it took.

        Raises:
            DecodeError: the engine has to start again.
        """
        began = time.perf_counter()
        if not self._main.compact():
            raise DecodeError("the filled KV cells could not be moved")
        return time.perf_counter() - began

    def _time_rows(self, seq_id: int) -> float:
        """Seconds of a step of a few tokens, whatever the cache holds."""
        rows = np.zeros(_CELL_TRIAL_ROWS, np.int32)
        times: list[float] = []
        while len(times) < _CELL_TRIES and (len(times) < _CALIBRATION_STEPS or sum(times) < _CELL_TRIAL_S):
            began = time.perf_counter()
            self._main.decode_tokens(rows, seq_id=seq_id, position=0)
            times.append(time.perf_counter() - began)
            self._main.forget(seq_id)
        return min(times)

    def forget_prefill(self, seq_id: int) -> None:
        """Free the cells of `seq_id` in the prefill context."""
        if self._prefill:
            self._prefill.forget(seq_id)

    def forget(self, seq_id: int, position: int = 0) -> None:
        """Free the KV cells of `seq_id` from `position` on."""
        self._main.forget(seq_id, position)
        if self._deterministic and not position:
            self._deterministic.forget(seq_id)

    def state_size(self, seq_id: int) -> int:
        """Bytes of the state of `seq_id`."""
        if self._prefill:
            self._prefill.catch_up(seq_id)
        return self._main.state_size(seq_id)

    def copy_out(self, seq_id: int, into: StateBytes) -> bool:
        """Copy the state of `seq_id` to `into`, which has its size; return whether that worked."""
        return self._main.copy_out(seq_id, into)

    @property
    def spare_id(self) -> int | None:
        """A sequence id that is not in use, for copies of a part of a sequence; None if there is none, or no
        part can be copied."""
        return None if self.sharing_error or not self.sharing.is_divisible else self._main.spare_id

    def first_positions(self, state: StateBytes, n: int) -> StateBytes | None:
        """`state` of the positions below `n` alone; None where its layout is not known."""
        try:
            return first_positions(state, n)
        except UnknownLayout:
            return None

    def copy_in(self, seq_id: int, state: StateBytes) -> bool:
        """Copy `state` to `seq_id`; return whether that worked. If not, it is empty."""
        return self._main.copy_in(seq_id, state)


def _time_tokens(context: Context, n: int) -> float:
    """Seconds to decode `n` tokens of no meaning, which are forgotten again."""
    began = time.perf_counter()
    context.decode_tokens(np.zeros(n, np.int32), seq_id=0, position=0)
    seconds = time.perf_counter() - began
    context.clear()
    return seconds


def _types_of(config: engine_pb2.EngineConfig) -> KvTypes:
    """Raises:
    LoadError: there is no such type.
    """
    found: list[KvType] = []
    for given in (config.kv_type_k, config.kv_type_v):
        known = next((name for name in NUMBER_TYPES if name == (given or USUAL.keys)), None)
        if known is None:
            raise LoadError(f"no KV cache is kept in {given!r}")
        found.append(known)
    return KvTypes(*found)


def _placement_of(config: engine_pb2.EngineConfig) -> Placement:
    """Raises:
    LoadError: an RPC server is away, or the devices are not those that were counted on.
    """
    try:
        add_servers(config.placement.rpc_servers)
        return Placement(config, find_devices())
    except (RpcServerError, PlacementError) as error:
        raise LoadError(f"{config.model_path}: {error}") from None


def _load_model(config: engine_pb2.EngineConfig, placement: Placement) -> Any:
    params = llama.llama_model_default_params()
    placement.apply(params)
    model = llama.llama_model_load_from_file(config.model_path.encode(), params)
    if not model:
        raise LoadError(f"{config.model_path}: {first_log_error('not a usable GGUF file')}")
    if llama.llama_model_has_encoder(model) or not llama.llama_model_has_decoder(model):
        raise LoadError(f"{config.model_path}: only decoder models can generate")
    return model
