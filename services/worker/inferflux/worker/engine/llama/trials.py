"""Findings of the trials at an engine's start, kept for the next engine of the same model.

Trials take most of the time of loading a small model. They find the same again as long as model and
configuration are the same; the worker sees to that. Speeds go on being learnt from every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.kv.compaction import MoveCost
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing

SHARING = {
    Sharing.FULL: scheduler_pb2.PREFIX_SHARING_FULL,
    Sharing.WINDOW: scheduler_pb2.PREFIX_SHARING_WINDOW,
    Sharing.CHECKPOINTS: scheduler_pb2.PREFIX_SHARING_CHECKPOINTS,
    Sharing.NONE: scheduler_pb2.PREFIX_SHARING_NONE,
}
_OF_SHARING = {value: kind for kind, value in SHARING.items()}


@dataclass(frozen=True, slots=True)
class Timing:
    """Tokens of a step, and the seconds it took."""

    n_prefill: int
    n_decoding: int
    seconds: float
    in_prefill_context: bool = False


@dataclass(slots=True)
class Trials:
    """Findings of trials about a context of `kv_cells` cells.

    Attributes:
        cuts_states: whether the first positions of a state can be restored alone.
        prefill_works: whether the main context goes on after what the prefill context computes.
        prefill_error: why it does not.
        timings: of prompts and of single tokens.
        single_thread_tokens: steps of at most this many tokens are left to one thread.
        cell_s: what a cell of another sequence adds to a step of a token.
        move_cost: None: cells are not moved.
        row_times: seconds of steps that verify drafts, by their rows.
        constraint_error: why answers cannot be constrained, "" if they can; None: it was not tried.
    """

    kv_cells: int
    sharing: PrefixSharing = field(default_factory=lambda: PrefixSharing(Sharing.NONE))
    cuts_states: bool = False
    prefill_works: bool = False
    prefill_error: str = ""
    timings: Sequence[Timing] = ()
    single_thread_tokens: int = 0
    cell_s: float = 0.0
    move_cost: MoveCost | None = None
    row_times: dict[int, float] = field(default_factory=dict)
    constraint_error: str | None = None

    def to_message(self) -> engine_pb2.EngineTrials:
        """Return the message that the worker keeps."""
        message = engine_pb2.EngineTrials(
            kv_cells=self.kv_cells,
            sharing=SHARING[self.sharing.kind],
            sharing_reason=self.sharing.reason,
            sharing_window=self.sharing.window,
            cuts_states=self.cuts_states,
            prefill_works=self.prefill_works,
            prefill_error=self.prefill_error,
            single_thread_tokens=self.single_thread_tokens,
            cell_s=self.cell_s,
            row_times=self.row_times,
            constraint_error=self.constraint_error,
        )
        for seen in self.timings:
            message.timings.add(
                prefill_tokens=seen.n_prefill,
                decoding=seen.n_decoding,
                seconds=seen.seconds,
                in_prefill_context=seen.in_prefill_context,
            )
        if self.move_cost is not None:
            message.move_s, message.moved_cell_s = self.move_cost.fixed_s, self.move_cost.cell_s
        return message


def known_trials(config: engine_pb2.EngineConfig, kv_cells: int) -> Trials | None:
    """Findings of an engine before this one; None where there was none, or its cache had another size."""
    told = config.trials
    kind = _OF_SHARING.get(told.sharing)
    if not config.HasField("trials") or told.kv_cells != kv_cells or kind is None:
        return None
    return Trials(
        kv_cells,
        PrefixSharing(kind, told.sharing_reason, told.sharing_window),
        cuts_states=told.cuts_states,
        prefill_works=told.prefill_works,
        prefill_error=told.prefill_error,
        timings=[
            Timing(seen.prefill_tokens, seen.decoding, seen.seconds, seen.in_prefill_context)
            for seen in told.timings
        ],
        single_thread_tokens=told.single_thread_tokens,
        cell_s=told.cell_s,
        move_cost=MoveCost(told.move_s, told.moved_cell_s) if told.HasField("move_s") else None,
        row_times=dict(told.row_times),
        constraint_error=told.constraint_error if told.HasField("constraint_error") else None,
    )
