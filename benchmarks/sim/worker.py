"""A worker as its contract says, whose steps take the time that a model of them says.

Every decoding sequence gets a token in each step, prompts share what the step's token budget leaves, most
urgent first. Steps that are alike are planned together, so that the simulation costs an event per change
and not per token.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2

from .contract import SWAPPED, ContractWorker, Sequence, Size, key_of

MODEL = "simulated"
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class WorkerModel(Size):
    """The memory and slots of one worker, and how fast it is."""

    # Seconds of a step, and those that every sequence adds that decodes in it.
    step_s: float = 0.020
    sequence_s: float = 0.0015
    prefill_tokens_per_s: float = 2000.0
    # Tokens of prompts in one step.
    prefill_budget: int = 128
    # The same in a step without decodes; 0: as many.
    lone_prefill_budget: int = 0
    # Cells to and from host memory per second.
    swap_cells_per_s: float = 50_000.0

    @property
    def decode_tokens_per_s(self) -> float:
        """With every slot decoding."""
        return self.slots / (self.step_s + self.slots * self.sequence_s)

    def times(self, speed: float) -> WorkerModel:
        """The same, `speed` times as fast."""
        return replace(
            self,
            step_s=self.step_s / speed,
            sequence_s=self.sequence_s / speed,
            prefill_tokens_per_s=self.prefill_tokens_per_s * speed,
        )

    def service_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Time of a full worker that one request takes, its share of the steps."""
        return prompt_tokens / self.prefill_tokens_per_s + output_tokens / self.decode_tokens_per_s


@dataclass(slots=True)
class EqualSteps:
    """`steps` equal steps from `start_s`: one token for each of `decoding`, `chunks` of prompts."""

    start_s: float
    step_s: float
    steps: int
    decoding: list[Sequence]
    chunks: list[tuple[Sequence, int]]

    @property
    def end_s(self) -> float:
        return self.start_s + self.step_s * self.steps

    def steps_done(self, now: float) -> int:
        return min(self.steps, math.floor((now - self.start_s) / self.step_s + _EPSILON))


class Readers(Protocol):
    """Readers that follow the token streams."""

    def on_tokens(
        self, key: RequestKey, epoch: int, offset: int, tokens: int, now: float, every_s: float
    ) -> None:
        """The last of these tokens came now, each of the others `every_s` before the next one."""

    def on_end(self, key: RequestKey, epoch: int, outcome: str) -> None: ...


class ModelledWorker(ContractWorker):
    """One worker. `look` and `next_s` move it through time; before each message comes `interrupt`, after it
    `look` again.

    Args:
        output_of: how many tokens a request will generate, if its max_tokens lets it.
        answer_of: these tokens, as many or more.
        readers: get what it emits.
        served: its model.
        incarnation: counts the processes of this name, from 1.
        started_at: in ms since the Unix epoch.
    """

    def __init__(
        self,
        worker_id: str,
        model: WorkerModel,
        *,
        output_of: Callable[[RequestKey], int],
        answer_of: Callable[[RequestKey], Iterable[int]] = lambda _key: itertools.count(),
        readers: Readers,
        served: str = MODEL,
        incarnation: int = 1,
        started_at: int = 0,
    ) -> None:
        super().__init__(worker_id, f"{worker_id}-{incarnation}", served, model, started_at)
        self._model = model
        self.events: list[scheduler_pb2.WorkerEvent] = []
        self._output_of = output_of
        self._answer_of = answer_of
        self._readers = readers
        self._now = 0.0
        self._plan: EqualSteps | None = None
        self._every_s = 0.0
        # Work that the next step waits for: copies to and from host memory.
        self._copy_s = 0.0

    @property
    def next_s(self) -> float | None:
        """When to call `look` next; None while it has nothing to do."""
        return None if self._plan is None else self._plan.end_s

    @property
    def step_end_s(self) -> float | None:
        """When the step ends that runs, as of the last `look`; None while none runs."""
        return None if self._plan is None else self._plan.start_s + self._plan.step_s

    def look(self, now: float) -> None:
        """Take what is done by `now` into account, and go on with what comes next."""
        plan = self._plan
        if plan is None:
            return
        self._apply(plan, plan.steps_done(now))
        if not plan.steps:
            self._plan = None
            self._begin(plan.start_s)

    def take_events(self) -> list[scheduler_pb2.WorkerEvent]:
        """Return its events since the last call."""
        events, self.events = self.events, []
        return events

    def take_batch(self, batch: worker_pb2.RequestBatch, now: float) -> worker_pb2.BatchAccepted:
        self._interrupt(now)
        answer = self.on_batch(batch)
        self._go_on(now)
        return answer

    def take_command(self, command: worker_pb2.WorkerCommand, now: float) -> None:
        self._interrupt(now)
        self.on_command(command)
        self._go_on(now)

    def beat(self, now: float) -> scheduler_pb2.WorkerStatus:
        """Its heartbeat."""
        self.look(now)
        status = self.status()
        status.prefill_tokens_per_s = self._model.prefill_tokens_per_s
        status.decode_tokens_per_s = self._model.decode_tokens_per_s
        return status

    # What the contract leaves open

    def tell(self, event: scheduler_pb2.WorkerEvent) -> None:
        self.events.append(event)

    def emit(self, sequence: Sequence, tokens: int) -> None:
        offset = sequence.generated - tokens
        self._readers.on_tokens(sequence.key, sequence.epoch, offset, tokens, self._now, self._every_s)

    def emit_end(self, sequence: Sequence, reason: generation_pb2.FinishReason.ValueType) -> None:
        name = generation_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
        self._readers.on_end(sequence.key, sequence.epoch, name)

    def output_of(self, request: scheduler_pb2.InferenceRequest) -> int:
        return min(self._output_of(key_of(request)), request.params.max_tokens)

    def answer_of(self, sequence: Sequence) -> list[int]:
        return list(itertools.islice(self._answer_of(sequence.key), sequence.generated))

    def must_wait(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """True if a sequence that has a slot takes no part in steps yet."""
        return False

    def on_computed(self, sequence: Sequence, tokens: int) -> None:
        """This many more tokens of a prompt, or of what was generated elsewhere, are computed."""

    def on_copy(self, cells: int) -> None:
        self._copy_s += cells / self._model.swap_cells_per_s

    # Steps

    def _interrupt(self, now: float) -> None:
        """The step that runs is the last one before something changes."""
        self.look(now)
        if self._plan is not None:
            self._plan.steps = 1

    def _go_on(self, now: float) -> None:
        if self._plan is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Plan the next equal steps."""
        self._make_room()
        running = [s for s in self.running() if not self.must_wait(s)]
        if not running:
            return
        decoding = [s for s in running if _is_decoding(s)]
        prefilling = [s for s in running if not _is_decoding(s)]
        model = self._model
        budget = model.prefill_budget if decoding else model.lone_prefill_budget or model.prefill_budget
        room = self._room(len(decoding), budget if prefilling else 0)
        chunks = list(_share(prefilling, min(budget, room)))
        tokens = sum(n for _, n in chunks)
        step_s = (
            model.step_s
            + model.sequence_s * len(decoding)
            + tokens / model.prefill_tokens_per_s
            + self._copy_s
        )
        steps = 1 if self._copy_s else _alike(decoding, chunks, room + len(decoding))
        self._copy_s = 0.0
        self._plan = EqualSteps(now, step_s, steps, decoding, chunks)

    def _room(self, decoding: int, prefill: int) -> int:
        """Cells for prompts in the next step; what is cached gives way to them."""
        self.cache.shrink(
            max(0, self.cells_used + self.cache.cells + decoding + prefill - self.size.kv_cells)
        )
        return self.size.kv_cells - self.cells_used - self.cache.cells - decoding

    def _make_room(self) -> None:
        """See that the next step fits; an evicted sequence needs no room in it."""
        while running := self.running():
            decoding = sum(1 for s in running if _is_decoding(s))
            self.fit(max(1, decoding) + (not _is_decoding(running[0]) and decoding > 0))
            if len(self.running()) == len(running):
                return

    def _apply(self, plan: EqualSteps, steps: int) -> None:
        """Account for this many of its steps. What was parked meanwhile still gets its token."""
        if not steps:
            return
        self._now, self._every_s = plan.start_s + steps * plan.step_s, plan.step_s
        for sequence, tokens in plan.chunks:
            if self._is_current(sequence):
                sequence.computed += tokens * steps
                self.on_computed(sequence, tokens * steps)
                if not sequence.uncomputed:
                    self.generate(sequence, 1)
        for sequence in plan.decoding:
            if self._is_current(sequence):
                sequence.computed += steps
                self.generate(sequence, steps)
        plan.start_s, plan.steps = self._now, plan.steps - steps

    def _is_current(self, sequence: Sequence) -> bool:
        return self.residents.get(sequence.key) is sequence and sequence.residence != SWAPPED


def _is_decoding(sequence: Sequence) -> bool:
    return sequence.uncomputed == 1 and sequence.computed >= sequence.prompt


def _tokens_left(sequence: Sequence) -> int:
    """New tokens until something happens to it: its end, or that of its timeslice."""
    left = sequence.output - sequence.generated
    return min(left, sequence.budget) if sequence.budget else left


def _alike(decoding: list[Sequence], chunks: list[tuple[Sequence, int]], room: int) -> int:
    """How many steps in a row are the same."""
    per_step = len(decoding) + sum(n for _, n in chunks)
    bounds = [_tokens_left(s) for s in decoding] + [s.uncomputed // n for s, n in chunks]
    if len(chunks) > 1:
        return 1
    return max(1, min([*bounds, room // max(1, per_step)]))


def _share(prefilling: Iterable[Sequence], budget: int) -> Iterator[tuple[Sequence, int]]:
    """The step's budget over prompts, one after the other."""
    for sequence in prefilling:
        if budget <= 0:
            return
        tokens = min(budget, sequence.uncomputed)
        budget -= tokens
        yield sequence, tokens
