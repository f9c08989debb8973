"""A small model with a context of its own, which drafts for the sequences of the main one.

It draws its tokens as the main model will: with the same noise, penalties and filters. Where both models have
about the same probabilities, the same tokens come, sampled ones too. What it has computed of a sequence stays
for the next draft. Of what it lacks, it computes as much before a step as prompts may add to one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferflux.common.llama.native import first_log_error, llama
from inferflux.common.llama.vocab import Vocab
from inferflux.worker.engine.plan.budget import StepTime
from inferflux.worker.engine.plan.row_times import RowTimes
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import MOST_DRAFTED, Course, ModelDraft
from inferflux.worker.engine.sampling.sampling import Logits, Sampler
from inferflux.worker.engine.sampling.sampling_rows import BAD, choose_tokens

from .batch import Run
from .context import Context, ContextError
from .sharing_trial import find_sharing
from .trial import trial_tokens

# Tokens that sequences lack are computed before one step: at most, and whatever the time.
_MOST_CATCHING_UP = 256
_FEWEST_CATCHING_UP = 16
# Steps of these numbers of tokens are timed at the start.
_FEW_TOKENS = (1, 2, 4, 8)
_MANY_TOKENS = (32, 128)
_TRIES = 5


class DraftModelError(Exception):
    """The file cannot draft for this model; says why."""


@dataclass(slots=True)
class Wanted:
    """A draft that is asked for.

    Attributes:
        most: tokens of it.
        course: says when it is long enough.
    """

    sequence: Sequence
    most: int
    course: Course


@dataclass(slots=True)
class _Place:
    """Place of one sequence: its sequence id, the number of its tokens computed there, and of cells the id
    has."""

    seq_id: int
    computed: int = 0
    held: int = 0


class DraftModel:
    """A loaded draft model.

    Args:
        path: its GGUF file.
        vocab: of the main model; its own has to be the same.
        sequences: for how many it can draft at once.
        cells: of its KV cache.
        adjust: given the `llama_model_params` that it is loaded with.

    Raises:
        DraftModelError: it cannot be used.
    """

    def __init__(
        self,
        path: str,
        vocab: Vocab,
        *,
        sequences: int,
        cells: int,
        batch_tokens: int,
        threads: int,
        gpu_layers: int,
        flash_attention: bool | None,
        adjust: Callable[[Any], None] = lambda _params: None,
    ) -> None:
        self._model = _load(path, gpu_layers, adjust)
        own = Vocab(self._model, owns_model=False)
        _check_vocabulary(own, vocab)
        try:
            self._context = Context(
                self._model,
                cells=cells,
                sequences=sequences,
                batch_tokens=max(batch_tokens, _MOST_CATCHING_UP),
                physical_batch=_MOST_CATCHING_UP,
                flash_attention=flash_attention,
                threads=threads,
                vocabulary=own.size,
            )
        except ContextError as error:
            raise DraftModelError(str(error)) from None
        self._check_memory(own)
        self.context_length = min(int(llama.llama_model_n_ctx_train(self._model)), self._context.cells)
        self._free = list(range(sequences))
        self._places: dict[Sequence, _Place] = {}
        # Of drafting, a token for each sequence, and of computing what they lack.
        self._rounds = RowTimes(sequences)
        self._catching_up = StepTime()
        self._use_best_threads(threads)
        self._measure()

    @property
    def flash_attention(self) -> bool:
        """True if it is in use."""
        return self._context.flash_attention

    def _check_memory(self, vocab: Vocab) -> None:
        if not self._context.has_memory:
            raise DraftModelError("the model keeps no KV cache: it does not generate text")
        window = int(llama.llama_model_n_swa(self._model))
        sharing = find_sharing(self._context, trial_tokens(vocab), window)
        if not sharing.is_divisible:
            raise DraftModelError(f"rejected tokens cannot be removed: {sharing.reason}")

    def _use_best_threads(self, threads: int) -> None:
        """A small model is faster where no thread has to be woken."""
        seconds = {}
        for n in {1, threads}:
            self._context.use_threads(n)
            seconds[n] = self._time_tokens(1)
        self._context.use_threads(min(seconds, key=lambda n: seconds[n]))

    def _measure(self) -> None:
        self._rounds.know({n: self._time_tokens(n) for n in _FEW_TOKENS})
        for n in _MANY_TOKENS:
            self._catching_up.observe(n, self._time_tokens(n))

    def _time_tokens(self, n: int) -> float:
        """Seconds of a step of `n` tokens: the least of some."""
        tokens = np.zeros(min(n, self._context.batch_tokens), np.int32)
        times = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            self._context.decode_tokens(tokens, seq_id=0, position=0)
            times.append(time.perf_counter() - began)
            self._context.clear()
        return min(times)

    def token_s(self, sequences: int) -> float:
        """Seconds that a token of a draft takes while this many sequences draft."""
        return self._rounds.seconds_of(sequences) / sequences

    def catch_up_s(self, sequence: Sequence) -> float:
        """Seconds of computing what it lacks of a sequence before it can draft."""
        place = self._places.get(sequence)
        lacking = sequence.n_tokens - (place.computed if place else 0)
        return self._catching_up.seconds_of(lacking) if lacking > _FEWEST_CATCHING_UP else 0.0

    def draft(self, wanted: Several[Wanted], within_s: float) -> list[ModelDraft | None]:
        """Tokens that may follow each of these sequences; none where there is no room.

        Args:
            within_s: computing what it lacks of these sequences may take about this long.

        Returns:
            None for those of which it still lacks some.

        Raises:
            DecodeError: it cannot draft any more.
        """
        drafts: list[ModelDraft | None] = [ModelDraft([], [], 0) for _ in wanted]
        places = self._places_of([one.sequence for one in wanted])
        runs: list[_Run] = []
        left = min(self._tokens_within(within_s), self._context.batch_tokens - len(wanted))
        at = []
        for i, place in enumerate(places):
            if place is None:
                continue
            sequence = wanted[i].sequence
            lacking = sequence.n_tokens - place.computed
            if lacking > max(left, 1):
                left -= self._compute(sequence, place, left)
                drafts[i] = None
                continue
            left -= lacking - 1
            at.append(i)
            runs.append(_Run(wanted[i], place))
        going = runs
        while going:
            going = self._round(going)
        for i, run in zip(at, runs, strict=True):
            drafts[i] = ModelDraft(run.draft, run.margins, run.n_worth)
        return drafts

    def _round(self, runs: list[_Run]) -> list[_Run]:
        """Draft a token for each; returns those that go on."""
        began = time.perf_counter()
        logits = self._context.decode_runs([run.pending() for run in runs])
        indices = [run.sequence.generated + len(run.draft) for run in runs]
        tokens = choose_tokens(logits, [run.sampler for run in runs], indices)
        margins = _margins(logits, tokens)
        n_tokens = sum(run.computed() for run in runs)
        seconds = time.perf_counter() - began
        if n_tokens == len(runs):
            self._rounds.observe(n_tokens, seconds)
        elif n_tokens > _FEWEST_CATCHING_UP:
            self._catching_up.observe(n_tokens, seconds)
        return [
            run for run, token, margin in zip(runs, tokens, margins, strict=True) if run.take(token, margin)
        ]

    def verified(self, sequence: Sequence) -> None:
        """A sequence has its next tokens: what was drafted beyond them, or otherwise, is not computed."""
        place = self._places.get(sequence)
        if place is not None:
            place.computed = min(place.computed, sequence.n_tokens - 1)

    def forget(self, sequence: Sequence) -> None:
        """Free what is held of a sequence, if anything is."""
        place = self._places.pop(sequence, None)
        if place is not None:
            self._context.forget(place.seq_id)
            self._free.append(place.seq_id)

    def _tokens_within(self, seconds: float) -> int:
        within = self._catching_up.tokens_within(seconds)
        return min(max(within, _FEWEST_CATCHING_UP), _MOST_CATCHING_UP)

    def _compute(self, sequence: Sequence, place: _Place, n: int) -> int:
        """Compute the next `n` tokens that are lacking, if any; returns how many it were."""
        if n <= 0:
            return 0
        began = time.perf_counter()
        tokens = sequence.tokens[place.computed : place.computed + n]
        self._context.decode_tokens(tokens, seq_id=place.seq_id, position=place.computed)
        self._catching_up.observe(n, time.perf_counter() - began)
        place.computed = place.held = place.computed + n
        return n

    def _places_of(self, sequences: Several[Sequence]) -> list[_Place | None]:
        """Places in which these sequences are computed, without rejected tokens; None where there is no
        room."""
        places = []
        for sequence in sequences:
            place = self._place_of(sequence, among=sequences)
            if place is not None:
                place.computed = min(place.computed, sequence.n_tokens - 1)
                if place.held > place.computed:
                    self._context.forget(place.seq_id, place.computed)
                    place.held = place.computed
            places.append(place)
        return places

    def _place_of(self, sequence: Sequence, *, among: Several[Sequence]) -> _Place | None:
        """Place in which a sequence is computed; None where there is no room for what it has and may draft.

        A sequence without room gives up what it had: others need it.
        """
        place = self._places.get(sequence)
        others = [other for other in self._places if other not in among]
        while others and not (self._has_room(sequence) and (place or self._free)):
            self.forget(others.pop(0))
        if not self._has_room(sequence):
            self.forget(sequence)
            return None
        if place is None and self._free:
            place = self._places[sequence] = _Place(self._free.pop())
        return place

    def _has_room(self, sequence: Sequence) -> bool:
        """True if it fits beside the others, each with all its tokens and a draft."""
        together = {*self._places, sequence}
        return sum(one.n_tokens + MOST_DRAFTED for one in together) <= self._context.cells


@dataclass(slots=True)
class _Run:
    """A draft of one sequence under way."""

    wanted: Wanted
    place: _Place
    draft: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    n_worth: int = 0
    sequence: Sequence = field(init=False)
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.sequence = self.wanted.sequence
        self.sampler = self.sequence.sampler

    def pending(self) -> Run:
        """Run of tokens to be computed before the next token."""
        place = self.place
        if self.draft:
            tokens = np.array(self.draft[-1:], np.int32)
        else:
            tokens = self.sequence.tokens[place.computed : self.sequence.n_tokens]
        return Run(tokens, place.seq_id, place.computed)

    def computed(self) -> int:
        """Note that `pending` is computed now; return how many tokens it had."""
        n = 1 if self.draft else self.sequence.n_tokens - self.place.computed
        self.place.computed = self.place.held = self.place.computed + n
        return n

    def take(self, token: int, margin: float) -> bool:
        """The next token; returns whether the draft goes on after it."""
        if token == BAD or token in self.sequence.end_tokens:
            return False  # nothing comes after the end, and the row before it says that it comes
        self.draft.append(token)
        self.margins.append(margin)
        course = self.wanted.course
        if not course.is_worth_a_row(margin):
            return False
        self.n_worth += 1
        if self.n_worth >= self.wanted.most or not course.goes_on:
            return False
        self.sampler = self.sampler.after(token)
        return True


def _margins(logits: Logits, tokens: list[int]) -> list[float]:
    """Margin of each row's token: its logit less the highest other one of the row, which is not read
    again."""
    at = np.arange(len(tokens)), np.array(tokens)
    chosen = logits[at]
    logits[at] = -np.inf
    margins: list[float] = (chosen - logits.max(axis=1)).tolist()
    return margins


def _load(path: str, gpu_layers: int, adjust: Callable[[Any], None]) -> Any:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    adjust(params)
    model = llama.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise DraftModelError(first_log_error("not a usable GGUF file"))
    if llama.llama_model_has_encoder(model) or not llama.llama_model_has_decoder(model):
        raise DraftModelError("only decoder models can generate")
    return model


def _check_vocabulary(own: Vocab, main: Vocab) -> None:
    """Raises DraftModelError where a token id means something else."""
    if own.size != main.size:
        raise DraftModelError(f"its vocabulary has {own.size} tokens, the model's {main.size}")
    for token in range(own.size):
        if own.text(token) != main.text(token):
            differs = f"token {token} is {own.text(token)!r}, {main.text(token)!r} of the model"
            raise DraftModelError(f"its vocabulary is another one: {differs}")
