"""A small model with a context of its own, which drafts for the sequences of the main one.

It draws its tokens as the main model will: with the same noise, penalties and filters. Where both models have
about the same probabilities, the same tokens come, sampled ones too. What it has computed of a sequence stays
for the next draft. Of what it lacks, it computes some hundred tokens a step before it drafts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferflux.common.llama.native import first_log_error, llama
from inferflux.common.llama.vocab import Vocab

from .budget import StepTime
from .context import Context, ContextError, Run
from .sampling_rows import BAD, choose_tokens
from .sequence import Sequence
from .sharing_trial import find_sharing
from .speculation import MOST_DRAFTED

# Tokens of a sequence that are computed in one step without a draft, at most.
_CATCH_UP = 256
_TRIES = 5


class DraftModelError(Exception):
    """The file cannot draft for this model; says why."""


@dataclass(slots=True)
class _Place:
    """Of one sequence: how many of its tokens are computed under which id, and how many cells the id has."""

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
        flash_attention: bool,
    ) -> None:
        self._model = _load(path, gpu_layers)
        own = Vocab(self._model, owns_model=False)
        _check_vocabulary(own, vocab)
        try:
            self._context = Context(
                self._model,
                cells=cells,
                sequences=sequences,
                batch_tokens=max(batch_tokens, _CATCH_UP),
                physical_batch=_CATCH_UP,
                flash_attention=flash_attention,
                threads=threads,
                vocabulary=own.size,
            )
        except ContextError as error:
            raise DraftModelError(str(error)) from None
        self._check_memory(own.size)
        self.context_length = min(int(llama.llama_model_n_ctx_train(self._model)), self._context.cells)
        self._free = list(range(sequences))
        self._places: dict[Sequence, _Place] = {}
        self._time = StepTime()
        self._use_best_threads(threads)

    def _check_memory(self, vocabulary: int) -> None:
        if not self._context.has_memory:
            raise DraftModelError("the model keeps no KV cache: it does not generate text")
        window = int(llama.llama_model_n_swa(self._model))
        sharing = find_sharing(self._context, vocabulary, window)
        if not sharing.is_divisible:
            raise DraftModelError(f"rejected tokens cannot be removed: {sharing.reason}")

    def _use_best_threads(self, threads: int) -> None:
        """A small model is faster where no thread has to be woken."""
        seconds = {}
        for n in {1, threads}:
            self._context.use_threads(n)
            seconds[n] = min(self._time_token() for _ in range(_TRIES))
        best = min(seconds, key=lambda n: seconds[n])
        self._context.use_threads(best)
        self._time.observe(1, seconds[best])

    def _time_token(self) -> float:
        began = time.perf_counter()
        self._context.decode_tokens(np.zeros(1, np.int32), seq_id=0, position=0)
        seconds = time.perf_counter() - began
        self._context.clear()
        return seconds

    def token_s(self, sequences: int) -> float:
        """Seconds that a token of a draft takes while this many sequences draft."""
        return self._time.seconds_of(sequences) / sequences

    def draft(self, wanted: Several[tuple[Sequence, int]]) -> list[list[int]]:
        """Tokens that may follow each of these sequences: as many as its number says, or fewer.

        Raises:
            DecodeError: the engine has to start again.
        """
        drafts: list[list[int]] = [[] for _ in wanted]
        ready = self._catch_up([sequence for sequence, _ in wanted])
        live = [i for i, (sequence, _) in enumerate(wanted) if sequence in ready]
        runs = [ready[wanted[i][0]] for i in live]
        samplers = [wanted[i][0].sampler for i in live]
        while live:
            began = time.perf_counter()
            logits = self._context.decode_runs(runs)
            indices = [wanted[i][0].generated + len(drafts[i]) for i in live]
            tokens = choose_tokens(logits, samplers, indices)
            self._time.observe(sum(run.tokens.shape[0] for run in runs), time.perf_counter() - began)
            for i, run, token in zip(live, runs, tokens, strict=True):
                place = self._places[wanted[i][0]]
                place.computed = place.held = run.position + run.tokens.shape[0]
                if token != BAD:
                    drafts[i].append(token)
            going = [at for at, i in enumerate(live) if tokens[at] != BAD and len(drafts[i]) < wanted[i][1]]
            runs = [
                Run(
                    np.array([tokens[at]], np.int32),
                    runs[at].seq_id,
                    runs[at].position + runs[at].tokens.shape[0],
                )
                for at in going
            ]
            samplers = [samplers[at].after(tokens[at]) for at in going]
            live = [live[at] for at in going]
        return drafts

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

    def _catch_up(self, sequences: Several[Sequence]) -> dict[Sequence, Run]:
        """Compute some of what long sequences lack; returns the last tokens of those that can draft."""
        ready: dict[Sequence, Run] = {}
        for sequence in sequences:
            place = self._place_of(sequence, among=sequences)
            if place is None:
                continue
            place.computed = min(place.computed, sequence.n_tokens - 1)
            if place.held > place.computed:
                self._context.forget(place.seq_id, place.computed)
                place.held = place.computed
            missing = sequence.tokens[place.computed : sequence.n_tokens]
            run = Run(missing[:_CATCH_UP].copy(), place.seq_id, place.computed)
            if missing.shape[0] <= min(_CATCH_UP, self._context.batch_tokens // len(sequences)):
                ready[sequence] = run
                continue
            self._context.decode_runs([run])
            place.computed = place.held = place.computed + run.tokens.shape[0]
        return ready

    def _place_of(self, sequence: Sequence, *, among: Several[Sequence]) -> _Place | None:
        """Where a sequence is computed; None where there is no room for what it has and may draft.

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
        """Whether it fits beside the others, each with all its tokens and a draft."""
        together = {*self._places, sequence}
        return sum(one.n_tokens + MOST_DRAFTED for one in together) <= self._context.cells


def _load(path: str, gpu_layers: int) -> Any:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
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
