"""Tokens of a step: sampled from its logits, taken by their sequences, and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.errors import InferFluxError, Internal
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.plan.acceptance import Accepted, accept
from inferflux.worker.engine.plan.answer import PieceSource
from inferflux.worker.engine.plan.facets import Timestamps
from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan
from inferflux.worker.engine.plan.sequence import Phase, Sequence
from inferflux.worker.engine.sampling.chunk_logprobs import PieceTexts
from inferflux.worker.engine.sampling.logprobs import Logprobs, logprobs_of
from inferflux.worker.engine.sampling.sampling_rows import BAD, choose_tokens

from . import chunks
from .clock import Clock
from .constrained_answers import failure
from .drafting import Drafting
from .masks import Masks, masked_rows
from .planning import Deschedule
from .report import Report
from .verification import drop_rejected, samplers_of


class Pieces(PieceSource, PieceTexts, Protocol):
    """Interface of a vocabulary that spells tokens."""


Complete = Callable[[Sequence, tokens_pb2.TokenChunk, generation_pb2.FinishReason.ValueType], None]


class Sampled:
    """Samples the tokens of an engine's steps.

    Args:
        worker_id: named in `started` events.
        complete: ends a sequence with its last chunk. fail: ends one that cannot go on.
        deschedule: takes a sequence's slot.
    """

    def __init__(
        self,
        pieces: Pieces,
        memory: Memory,
        drafting: Drafting,
        report: Report,
        clock: Clock,
        *,
        worker_id: str,
        complete: Complete,
        fail: Callable[[Sequence, InferFluxError], None],
        deschedule: Deschedule,
    ) -> None:
        self._pieces = pieces
        self._memory = memory
        self.drafting = drafting
        self._report = report
        self._clock = clock
        self._worker_id = worker_id
        self._complete = complete
        self._fail = fail
        self._deschedule = deschedule
        self._masks = Masks()
        self._plain = chunks.PlainChunk()

    def advance(self, plan: StepPlan) -> None:
        """Count what a step has computed, and report how far prompts have come."""
        for part in plan.parts:
            self._memory.grow(part.sequence, part.n)
        for part in plan.parts:
            sequence = part.sequence
            if not sequence.reuse.is_counted:
                self._count_first_step(sequence)
            sequence.position += part.n - part.n_drafted
            if part.n_logits:
                if sequence.is_prefilling:
                    self._memory.complete_prefill(sequence)
                continue
            if sequence.position == sequence.reuse.checkpoint_at:
                self._memory.make_checkpoint(sequence)
            self._report.computed(sequence)
            if not sequence.times.is_announced:
                chunk = chunks.announce(sequence, chunks.empty(sequence), self._worker_id)
                self._report.emit(sequence, chunk.SerializeToString())

    def _count_first_step(self, sequence: Sequence) -> None:
        """Before its first step here: what was found of a request that another process had."""
        sequence.reuse.is_counted = sequence.reuse.has_begun = True
        if sequence.origin.is_retry:
            stats = self._report.step.stats
            stats.retried_tokens += sequence.n_tokens
            stats.retried_found_tokens += sequence.position

    def take(self, plan: StepPlan, logits: NDArray[np.float32]) -> None:
        """Choose and report the tokens that follow.

        Args:
            logits: of shape (rows that the plan wants, vocabulary).
        """
        if any(part.n_scored for part in plan.prefilling):
            logits = self._score(plan, logits)
        rows = [
            (part.sequence, part.sequence.generated + i) for part in plan.parts for i in range(part.n_logits)
        ]
        if not rows:
            return
        samplers = [sampler for part in plan.parts for sampler in samplers_of(part)]
        with self._masks.applied(logits, masked_rows(plan.parts)):
            tokens = choose_tokens(logits, samplers, [index for _, index in rows])
        if plan.n_drafted:
            drop_rejected(plan.parts, tokens)
        unix_s = self._clock.unix_s()
        logprobs = logprobs_of(logits, tokens, [sequence.sampler.n_logprobs for sequence, _ in rows])
        first = 0
        for part in plan.parts:
            end = first + part.n_logits
            if part.n_logits:
                self._take_tokens(part, tokens[first:end], logprobs[first:end], unix_s)
            first = end

    def _score(self, plan: StepPlan, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take in what is told of prompts' tokens; the rows of `logits` of which a token is to be chosen."""
        kept: list[int] = []
        row = 0
        for part in plan.parts:
            end = row + part.n_rows
            if part.n_scored and part.sequence.prompt_scores is not None:
                first = part.sequence.position - part.n
                part.sequence.prompt_scores.add(part.sequence, first, logits[row:end], self._pieces)
            kept += range(end - part.n_logits, end)
            row = end
        return logits[kept]

    def _take_tokens(
        self, part: ScheduledTokens, tokens: list[int], logprobs: list[Logprobs | None], unix_s: float
    ) -> None:
        """Append what was sampled for a sequence, and report it."""
        sequence = part.sequence
        if tokens[0] == BAD:
            self._fail_part(part)
            return
        if BAD in tokens:
            tokens = tokens[: tokens.index(BAD)]
        was_prefilling = sequence.phase is Phase.PREFILL
        if was_prefilling:
            self._note_first_token(sequence.times, sequence.generated)
            sequence.phase = Phase.DECODE
        offset = sequence.generated
        accepted = accept(sequence, tokens, self._pieces)
        if part.n_drafted:
            self._settle_draft(part)
        unix_us = int(unix_s * 1e6)
        held = sequence.answer.text.held
        has_more = (
            held
            or was_prefilling  # it may be announced with this token
            or logprobs[0] is not None
            or len(accepted.tokens) > 1
        )
        if has_more or accepted.finish_reason is not None:
            chunk = self._chunk_of(sequence, offset, accepted, logprobs, unix_us)
            if accepted.finish_reason is not None:
                self._complete(sequence, chunk, accepted.finish_reason)
                return
            chunk.held_text = held
            self._report.emit(sequence, chunk.SerializeToString())
        else:
            plain = self._plain.serialized(offset, accepted.tokens[0], accepted.text, unix_us)
            self._report.emit(sequence, plain)
        if accepted.is_timeslice_over:
            self._deschedule(sequence, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def _fail_part(self, part: ScheduledTokens) -> None:
        """No token could be chosen."""
        sequence, constraint = part.sequence, part.sequence.answer.constraint
        if part.n_drafted:
            self._memory.trim(sequence)
        if constraint is not None and constraint.error:
            self._fail(sequence, failure(sequence, constraint.error))
        else:
            self._fail(sequence, Internal("the model gave no finite logits", reason="BAD_LOGITS"))

    def _settle_draft(self, part: ScheduledTokens) -> None:
        """Keep the cells of a draft's tokens that its sequence took."""
        sequence = part.sequence
        taken = sequence.n_tokens - 1 - sequence.position
        sequence.position += taken
        if taken < part.n_drafted:
            self._memory.trim(sequence)
        self.drafting.verified(part, taken)

    def _chunk_of(
        self,
        sequence: Sequence,
        offset: int,
        accepted: Accepted,
        logprobs: list[Logprobs | None],
        unix_us: int,
    ) -> tokens_pb2.TokenChunk:
        chunk = chunks.empty(sequence, offset)
        if not sequence.times.is_announced:
            chunks.announce(sequence, chunk, self._worker_id)
        chunks.add_tokens(chunk, accepted, logprobs, unix_us, self._pieces)
        if offset == 0 and sequence.prompt_scores is not None:
            chunk.prompt_logprobs.extend(sequence.prompt_scores.entries)
            sequence.prompt_scores = None
        return chunk

    def _note_first_token(self, times: Timestamps, generated: int) -> None:
        if times.first_token_s is None:
            now_s = times.first_token_s = self._clock.monotonic_s()
            if generated == 0:
                times.time_to_first_token_ms = max(now_s - times.enqueued_s, 0.0) * 1000
