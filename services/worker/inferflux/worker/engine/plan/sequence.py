"""One resident request of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

import numpy as np

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.contract.request_times import deadline_s, monotonic_s, queue_ms
from inferflux.common.contract.requests.answer_spelling import control_texts
from inferflux.common.contract.requests.images import without_placeholders
from inferflux.common.text.answers.families import syntax_in
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.constraints.constraints import Constraint, Masking
from inferflux.worker.engine.constraints.reasoning import Closing, Reasoning
from inferflux.worker.engine.kv.envelope import Envelope, TokenArray
from inferflux.worker.engine.media.images import SequenceImages
from inferflux.worker.engine.sampling.bans import Bans
from inferflux.worker.engine.sampling.breakers import BreakerFinder
from inferflux.worker.engine.sampling.prompt_scores import SCORED_ROWS, PromptScores
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.reads import Fetch

from .speculation import Drafts
from .text import TextAssembler

NO_SEQ_ID = -1
DETERMINISTIC_GROUP = "!"
"""Ends the name of a group of sequences whose steps hold nothing else."""
# Where a prefix is, in messages; None: in the KV cache.
CACHE_TIERS: Mapping[Tier | None, generation_pb2.CacheTier.ValueType] = {
    None: generation_pb2.CACHE_TIER_DEVICE,
    Tier.HOST: generation_pb2.CACHE_TIER_HOST,
    Tier.DISK: generation_pb2.CACHE_TIER_DISK,
}


class PieceSource(Protocol):
    """Interface of a vocabulary that a sequence needs."""

    @property
    def eog(self) -> frozenset[int]: ...

    def piece(self, token: int) -> bytes: ...

    def control_token(self, text: str) -> int | None: ...

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> Several[int]: ...


class Phase(Enum):
    """Work that a step does for a sequence."""

    PREFILL = auto()
    """Computes tokens that are known: no token was sampled after them, or their KV cells were discarded."""
    DECODE = auto()
    """Computes what was sampled last, and samples what follows."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its tokens, where they are, and what it needs to go on.

    `tokens` holds the prompt and what was generated, with room for all that may come. The first
    `position` of them are computed; the rest, `pending`, are still to be: the prompt (and on a retry what
    was generated before) while it prefills, the last sampled token while it decodes.

    It runs while it has a `slot`, which the scheduler assigned. What is computed is in the KV cache while
    it `is_loaded`, under the `seq_id` that the memory gave it, else in `state`, a copy in host memory, of
    which the first `position` tokens are wanted.
    A sequence that runs may be neither yet: it then waits for room.
    """

    key: str
    request_id: str
    epoch: int
    slot: int | None
    urgency_key: float
    arrival: int
    tokens: TokenArray
    prompt_tokens: int
    max_tokens: int
    end_tokens: frozenset[int]
    sampler: Sampler
    text: TextAssembler
    # By the monotonic clock.
    deadline_s: float
    enqueued_s: float
    queue_ms: float
    started_s: float
    generated: int = 0
    position: int = 0
    phase: Phase = Phase.PREFILL
    # When it last got a slot, by the monotonic clock.
    scheduled_at_s: float = 0.0
    seq_id: int = NO_SEQ_ID
    # Whether the prefill context computes it.
    in_prefill_context: bool = False
    state: Envelope | None = None
    # Requests of the same scope share cached prefixes.
    cache_scope: str = ""
    # The digest of the adapter that computes it; empty: none. A step holds sequences of one adapter.
    adapter: str = ""
    # As clients name it.
    adapter_name: str = ""
    # Whether its tokens are the same whatever else is cached or runs.
    is_deterministic: bool = False
    # Whether its adapter is still being loaded.
    lacks_adapter: bool = False
    # A prefix on its way to host memory, since when, by the monotonic clock, and where `state` is from if it
    # was found.
    fetch: Fetch[Sequence] | None = None
    fetch_began_s: float = 0.0
    restored_from: Tier | None = None
    is_looked_up: bool = False
    # What the KV cache had of it when the tiers below were asked.
    known_tokens: int = 0
    # Counts how often it was scheduled to run: its first run is 0.
    run: int = 0
    # Generated tokens at which it yields; 0: at none.
    yields_at: int = 0
    # When this engine sampled its first token, by the monotonic clock.
    first_token_s: float | None = None
    time_to_first_token_ms: float = 0.0
    is_announced: bool = False
    attempt_id: str = ""
    # As clients name it.
    model: str = ""
    # The version of the cached prefixes when its prompt was last looked up; -1: never.
    looked_up_at: int = -1
    # Whether a prefix of it was found among them.
    had_hit: bool = False
    # A position at which a step is to end, so that others can begin there; 0: none.
    checkpoint_at: int = 0
    # Of the prompt, what was found computed when it first ran. What is found later may be its own.
    cached_prompt_tokens: int = 0
    # In which tier; None: in the KV cache.
    cached_in: Tier | None = None
    has_begun: bool = False
    # What its answer has to look like.
    constraint: Constraint | None = None
    # The field of the request that asked for it.
    constraint_field: str = ""
    # Whether its answer is, and waits to be checked.
    is_complete: bool = False
    # Of its next tokens; None: none are made.
    drafts: Drafts | None = None
    # Of its prompt.
    images: SequenceImages = field(default_factory=SequenceImages)
    # Control tokens that its text shows.
    markers: Mapping[int, bytes] = field(default_factory=dict)
    # How its text is told apart, which its chunks say; None: all of it is content.
    answer_format: generation_pb2.AnswerFormat | None = None
    # Of an answer that may begin with reasoning.
    reasoning: Reasoning | None = None
    # Of its prompt's tokens, until the first token is told.
    prompt_scores: PromptScores | None = None
    # Whether another process had it, and nothing of it was computed here yet; and whether that one is dead.
    is_retry: bool = False
    was_lost: bool = False
    # What all its chunks begin with, serialized once.
    chunk_head: bytes = field(init=False)

    def __post_init__(self) -> None:
        head = tokens_pb2.TokenChunk(request_id=self.request_id, epoch=self.epoch)
        self.chunk_head = head.SerializeToString()

    @property
    def is_outside_main_context(self) -> bool:
        """Return whether what is computed of it is not in the main context."""
        return self.in_prefill_context or self.is_deterministic

    @property
    def computes_all(self) -> bool:
        """Return whether nothing of its prompt is taken from what was computed before."""
        return self.is_scored or self.is_deterministic

    @property
    def step_group(self) -> str:
        """Sequences of the same one may be computed in one step."""
        return f"{self.adapter}{DETERMINISTIC_GROUP}" if self.is_deterministic else self.adapter

    @property
    def order(self) -> tuple[float, int]:
        """Lower is more urgent; no two are equal."""
        return self.urgency_key, self.arrival

    @property
    def n_tokens(self) -> int:
        """The prompt and what was generated."""
        return self.prompt_tokens + self.generated

    @property
    def n_pending(self) -> int:
        return self.prompt_tokens + self.generated - self.position

    @property
    def n_draftable(self) -> int:
        """Tokens that may be drafted after its last one: it takes one more than that in a step."""
        end = min(self.max_tokens, self.yields_at or self.max_tokens)
        n = end - self.generated
        return (n if self.reasoning is None else min(n, self.reasoning.n_free)) - 1

    @property
    def n_computable(self) -> int:
        """Pending tokens that a step may compute: it ends at a checkpoint, and where an image begins or
        ends."""
        n = self.n_pending
        if self.is_scored:
            n = min(n, SCORED_ROWS)
        if self.position < self.checkpoint_at < self.n_tokens:
            n = self.checkpoint_at - self.position
        return self.images.computable(self.position, n) if self.images else n

    @property
    def n_indivisible(self) -> int:
        """Pending tokens that a step computes together or not at all; 0: any number of them."""
        return self.images.indivisible(self.position) if self.images else 0

    @property
    def masking(self) -> Masking | None:
        """Says which tokens may come next; None: any."""
        if self.reasoning is not None and self.reasoning.forced:
            return Closing(self.reasoning.forced, self.constraint)
        return self.constraint

    def forced(self) -> Several[int]:
        """The next tokens, as far as there is no choice of them."""
        if self.reasoning is not None and self.reasoning.forced:
            return self.reasoning.forced
        return [] if self.constraint is None else self.constraint.forced()

    @property
    def is_scored(self) -> bool:
        """Return whether wanted logits of its prompt are still to compute. Until then it shares nothing that
        others have computed."""
        scores = self.prompt_scores
        return scores is not None and not scores.is_complete(self.prompt_tokens)

    @property
    def is_prefilling(self) -> bool:
        return self.phase is Phase.PREFILL

    @property
    def is_held(self) -> bool:
        """True if no step may hold it: its adapter is being loaded, what its sampling needs is being made in
        another thread, or its answer is being checked."""
        if self.lacks_adapter:
            return True
        if self.constraint is not None and (self.is_complete or not self.constraint.is_ready):
            return True
        return not self.sampler.is_ready or not self.images.is_ready

    @property
    def is_running(self) -> bool:
        return self.slot is not None

    @property
    def is_loaded(self) -> bool:
        """True if it is in the KV cache, or about to fill its first cells."""
        return self.seq_id != NO_SEQ_ID

    @property
    def residence(self) -> scheduler_pb2.Residence.ValueType:
        if self.is_running:
            return scheduler_pb2.RESIDENCE_RUNNING
        return scheduler_pb2.RESIDENCE_PARKED if self.is_loaded else scheduler_pb2.RESIDENCE_SWAPPED

    @property
    def cells(self) -> int:
        """KV cells it fills."""
        return self.position if self.is_loaded else 0

    def resume(self, *, run: int, urgency_key: float, token_budget: int) -> None:
        """Go on, for `token_budget` new tokens; 0 for as many as it takes."""
        self.run = run
        self.urgency_key = urgency_key
        self.yields_at = self.generated + token_budget if token_budget else 0

    def begin_at(self, position: int, tier: Tier | None = None) -> None:
        """Others have computed the tokens before `position`: their state is in this tier, or the KV cache."""
        self.position = position
        if not self.has_begun:
            self.cached_prompt_tokens = min(position, self.prompt_tokens)
            self.cached_in = tier

    @property
    def cached_prompt_tier(self) -> generation_pb2.CacheTier.ValueType:
        """Tier that held the cached tokens of its prompt; unspecified if there were none."""
        return (
            CACHE_TIERS[self.cached_in]
            if self.cached_prompt_tokens
            else generation_pb2.CACHE_TIER_UNSPECIFIED
        )

    def note_checkpoint(self, position: int) -> None:
        """Others may begin at `position`, or at what was noted before if that is farther."""
        self.checkpoint_at = max(self.checkpoint_at, self.images.shareable(position))

    def discard(self) -> None:
        """Count nothing as computed any more: all of it is prefilled again, or found."""
        self.go_back(0)
        self.state = None
        self.is_looked_up = False
        self.looked_up_at = min(self.looked_up_at, 0)

    def go_back(self, position: int) -> None:
        """The tokens from `position` on are prefilled again."""
        self.position = position
        self.phase = Phase.PREFILL
        if not self.has_begun:
            self.cached_prompt_tokens = min(position, self.cached_prompt_tokens)

    def piece(self, token: int, pieces: PieceSource) -> bytes:
        """The bytes that a token adds to the text."""
        return pieces.piece(token) or self.markers.get(token, b"")

    def take_text(self, token: int, pieces: PieceSource) -> str:
        """The text that the next token releases."""
        piece = self.piece(token, pieces)
        if self.reasoning is not None:
            self.reasoning.push(piece)
        return self.text.push(piece)

    def append(self, token: int) -> None:
        """The next token, sampled."""
        self.tokens[self.prompt_tokens + self.generated] = token
        self.generated += 1
        self.sampler.accept(token)
        if self.constraint is not None:
            self.constraint.accept(token)


def sequence_of(
    item: worker_pb2.BatchItem,
    *,
    arrival: int,
    now_s: float,
    unix_s: float,
    pieces: PieceSource,
    breakers: BreakerFinder | None = None,
    images: SequenceImages | None = None,
) -> Sequence:
    """A sequence ready to prefill, its sampler and text brought up to the tokens already emitted.

    Args:
        arrival: order among sequences of the same urgency key.
        now_s: monotonic clock. unix_s: wall clock.
        pieces: the vocabulary, for replaying text and for its end-of-generation tokens.
        breakers: of the same vocabulary, for DRY; without one, it has none.
        images: of its prompt. Penalties do not look at their cells.
    """
    request = item.request
    params = request.params
    generated = list(request.generated_token_ids)
    history = list(request.prompt_token_ids) + generated
    n_prompt = len(request.prompt_token_ids)
    tokens = np.zeros(n_prompt + params.max_tokens, np.int32)
    tokens[: len(history)] = history
    said = without_placeholders(history) if images else history
    ends = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        ends |= pieces.eog
    enqueued_s = monotonic_s(request.enqueued_unix_ms, now_s=now_s, unix_s=unix_s)
    form = request.answer_format if request.HasField("answer_format") else None
    sequence = Sequence(
        key=f"{request.tenant}.{request.request_id}",
        request_id=request.request_id,
        epoch=request.epoch,
        slot=None,
        urgency_key=item.urgency_key,
        arrival=arrival,
        tokens=tokens,
        prompt_tokens=n_prompt,
        max_tokens=params.max_tokens,
        end_tokens=ends,
        sampler=Sampler(
            params.sampling,
            said,
            breakers.of(params.sampling) if breakers else None,
            Bans.of((run.ids for run in params.banned), ends, params.min_tokens, generated),
        ),
        text=TextAssembler(params.stop, params.min_tokens),
        images=images or SequenceImages(),
        markers=_shown_markers(request, pieces),
        answer_format=form,
        reasoning=_reasoning_of(form, params, pieces) if form is not None and form.reasoning else None,
        deadline_s=deadline_s(request, now_s=now_s, unix_s=unix_s),
        enqueued_s=enqueued_s,
        queue_ms=queue_ms(request, unix_s=unix_s),
        started_s=now_s,
        run=item.run,
        generated=len(generated),
        yields_at=len(generated) + item.token_budget if item.token_budget else 0,
        attempt_id=request.attempt_id,
        model=request.model,
        cache_scope=cache_scope_of(request),
        adapter=request.adapter_digest,
        adapter_name=request.adapter,
        has_begun=request.epoch > 1,
        is_retry=request.epoch > 1,
        was_lost=item.was_lost,
        prompt_scores=_scores(params) if not generated and not images else None,
    )
    for token in generated:
        sequence.take_text(token, pieces)
    return sequence


def _reasoning_of(
    form: generation_pb2.AnswerFormat, params: generation_pb2.GenerationParams, pieces: PieceSource
) -> Reasoning:
    if not params.HasField("max_reasoning_tokens"):
        return Reasoning(form)
    closing_text = syntax_in(form.syntax, form.reasoning).thought.end
    closing = pieces.tokenize(closing_text.encode(), add_special=False, parse_special=True)
    return Reasoning(form, most=params.max_reasoning_tokens, closing=closing)


def _scores(params: generation_pb2.GenerationParams) -> PromptScores | None:
    return PromptScores(params.prompt_logprobs) if params.HasField("prompt_logprobs") else None


def _shown_markers(request: scheduler_pb2.InferenceRequest, pieces: PieceSource) -> Mapping[int, bytes]:
    """Control tokens that spell tool calls and reasoning, each with its text: a reader needs to see them."""
    form, calls = request.answer_format, request.params.constraint.tool_calls
    given = form.syntax if form.HasField("syntax") else calls.syntax
    syntax = syntax_in(given, form.reasoning)
    found = ((marker, pieces.control_token(marker)) for marker in control_texts(syntax))
    return {token: marker.encode() for marker, token in found if token is not None}
