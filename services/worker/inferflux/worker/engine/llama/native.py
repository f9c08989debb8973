"""llama.cpp: a model, the main context whose KV cache its sequences fill, and on a CPU a prefill context.

llama.cpp's flash attention on a CPU goes through a batch row by row. Each row looks at every cell of a
unified cache, those of other sequences too. Deep in a prompt, a few rows at a time take three times as long
per row as many. Without flash attention it is a matrix product, as fast per row for few rows as for many, but
over every cell of the cache. So a prefill of several steps is computed in a small context without flash
attention, and copied to the main one by the time it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from inferflux.common.llama.native import first_log_error, llama, log_errors
from inferflux.v1 import device_pb2, engine_pb2
from inferflux.worker.engine.kv.compaction import MoveCost
from inferflux.worker.engine.kv.envelope import Identity
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.media.image_note import ImageNote
from inferflux.worker.engine.plan.planner import StepPlan
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import MOST_ROWS

from .adapters import AdapterError
from .context import Adapter, DecodeError, IsInterrupted
from .deterministic import DeterministicContext
from .draft_model import DraftModel, DraftModelError
from .loading import Loaded, LoadError
from .other_contexts import deterministic_context, prefill_context
from .pinned_state import StateBytes, UnknownLayout, first_positions, has_positions
from .sharing_trial import can_cut_states, find_sharing
from .speed import compact, decode_timings, prefill_timings, row_times, single_thread_tokens, time_cell
from .trial import trial_tokens
from .trials import Timing, Trials, known_trials

# Tokens of all parts of the vocabulary, decoded once before anything is served.
_TRIAL_TOKENS = 64
# Where an engine before this one has decoded those.
_FEW_TRIAL_TOKENS = 4
_SUFFIX_PER_THREAD = 8


class Backend:
    """A loaded model with a context for `sequences` sequences.

    Raises:
        LoadError: no such model, not a generative one, or too little memory.
    """

    def __init__(self, config: engine_pb2.EngineConfig, *, is_unified: bool = True) -> None:
        log_errors.clear()
        self._is_unified = is_unified
        self._loaded = loaded = Loaded(config, is_unified=is_unified)
        self._placement = loaded.placement
        self._model = loaded.handle
        self._main = loaded.main
        self.vocab = loaded.vocab
        self.slots = config.slots
        self.sequences = loaded.sequences
        self.kv_types = loaded.kv_types
        self.parameters = int(llama.llama_model_n_params(self._model))
        self._is_thread_count_asked = config.threads > 0
        self._threads = loaded.threads
        # Steps of at most this many tokens are left to one thread.
        self._single_thread_tokens = 0
        self.expert_ranks = self._placement.found_ranks(loaded.log)
        self._devices = self._placement.report(loaded.log, config, flash_attention=self._main.flash_attention)
        self.cells = self._main.cells
        self._known = known_trials(config, self.cells)
        # What is found here, or was found before.
        self.trials = self._known or Trials(self.cells)
        self._check_logits(config.model_path, _TRIAL_TOKENS if self._known is None else _FEW_TRIAL_TOKENS)
        self.kv_bytes = self.cells * self._main.cell_bytes()
        self.context_length = min(loaded.context_length, self.cells)
        self.batch_tokens = self._main.batch_tokens
        if self._known is None:
            tokens = trial_tokens(self.vocab)
            self.trials.sharing = sharing = self._find_sharing(tokens)
            self.trials.cuts_states = sharing.is_divisible and can_cut_states(self._main, tokens)
        self.sharing = self.trials.sharing
        self.cuts_states = self.trials.cuts_states
        self.cell_s = 0.0
        self.move_cost: MoveCost | None = None
        self._prefill, self.prefill_context_error = prefill_context(
            loaded,
            config,
            self.sharing,
            self.trials,
            context_length=self.context_length,
            is_known=self._known is not None,
        )
        self._deterministic: DeterministicContext | None = None
        self._deterministic_error = ""
        self._draft: DraftModel | None = None
        self._adapters: dict[str, Adapter] = {}
        # Steps so far that another adapter computed than the step before.
        self.adapter_switches = 0
        self.identity = self._identity(config)
        self.projector = loaded.new_projector(config, is_known=self._known is not None)

    def note_images(self, note: ImageNote) -> None:
        """Have each image named in `note` while its cells are computed."""
        self._main.note = note

    @property
    def device_context(self) -> device_pb2.DeviceContext:
        """Devices that it runs on, and the contexts that there are by now."""
        self._devices.flash_attention_by_context.update(self.flash_attention())
        return self._devices

    def flash_attention(self) -> dict[str, bool]:
        """Use of flash attention, by each context that there is by now."""
        contexts = {
            "main": self._main,
            "prefill": self._prefill.context if self._prefill else None,
            "draft": self._draft,
            "deterministic": self._deterministic,
            "projector": self.projector,
        }
        return {name: context.flash_attention for name, context in contexts.items() if context is not None}

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

    def open_deterministic(self) -> str:
        """Make the context of deterministic requests, unless it was made; why there is none, or empty."""
        if self._deterministic is None and not self._deterministic_error:
            cells = min(self.context_length, self.cells) + 1
            self._deterministic, self._deterministic_error = deterministic_context(
                self._loaded, self.sharing, cells=cells, kv_bytes=cells * self.kv_bytes // self.cells
            )
        return self._deterministic_error

    def admits(self, sequence: Sequence) -> bool:
        """Return whether the deterministic context has room for all of a sequence, and keep that room."""
        room = sequence.prompt_tokens + sequence.max_tokens
        return self._deterministic is not None and self._deterministic.admits(sequence.seq_id, room)

    def warm_up(self) -> list[Timing]:
        """Touch every weight, so that the first request does not pay for it, and measure the model's speed.

        Returns:
            Timings of prompts and of single tokens.
        """
        self._main.touch_weights()
        found = self.trials
        if self._known is None:
            self._measure(found)
        self._single_thread_tokens = found.single_thread_tokens
        self.cell_s, self.move_cost = found.cell_s, found.move_cost
        return list(found.timings)

    def _measure(self, found: Trials) -> None:
        """Measure the model's speed."""
        if not self._is_thread_count_asked:
            found.single_thread_tokens = single_thread_tokens(self._main, self._threads)
            self._single_thread_tokens = found.single_thread_tokens
        # A recurrent model has no cells that a token would look at.
        if not self.sharing_error and not llama.llama_model_is_recurrent(self._model):
            has_moves = self.sharing.is_divisible
            found.cell_s, found.move_cost = time_cell(self._main, self.sequences, has_moves=has_moves)
        timings = prefill_timings(self._main, in_prefill_context=False)
        if self._prefill:
            timings += prefill_timings(self._prefill.context, in_prefill_context=True)
        found.timings = timings + decode_timings(self._main)

    def row_times(self) -> dict[int, float]:
        """Seconds of steps that verify drafts, by their rows: of few for a large model. After `warm_up`.

        The main context must be empty, and is again.
        """
        if self._known is None or not self._known.row_times:
            self.trials.row_times = row_times(self._main, self.verified_rows, self._choose_threads)
        return self.trials.row_times

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
            self._draft = DraftModel(
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
            return self._draft
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

    def compact(self) -> float:
        """Move all filled cells of the main context down, in their order; returns the seconds it took.

        Raises:
            DecodeError: the engine has to start again.
        """
        return compact(self._main)

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

    def copy_part_out(self, seq_id: int, first: int, end: int, room: Callable[[int], StateBytes]) -> bool:
        """Copy the state of `seq_id` from position `first` up to `end` into memory that `room` gives;
        return whether that worked. There must be a `spare_id`.

        Raises:
            DecodeError: the engine has to start again.
        """
        if self._prefill:
            self._prefill.catch_up(seq_id)
        return self._main.copy_part_out(seq_id, first, end, room) is not None

    def append(self, seq_id: int, state: StateBytes) -> bool:
        """Append `state`, of the tokens that follow, to `seq_id`; return whether that worked. There must be a
        `spare_id`."""
        return self._main.append(seq_id, state)

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

    def has_positions(self, state: StateBytes, first: int, end: int) -> bool:
        """True if `state` has each of the positions [first, end) once, and no other, or its layout is not
        known. llama.cpp takes any, and does not remove those below 0."""
        return not self.cuts_states or has_positions(state, first, end)

    def copy_in(self, seq_id: int, state: StateBytes) -> bool:
        """Copy `state` to `seq_id`; return whether that worked. If not, it is empty."""
        return self._main.copy_in(seq_id, state)
