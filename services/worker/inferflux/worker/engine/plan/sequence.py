"""One resident request of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2
from inferflux.worker.engine.kv.envelope import TokenArray
from inferflux.worker.engine.media.images import SequenceImages
from inferflux.worker.engine.sampling.prompt_scores import SCORED_ROWS, PromptScores
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.tiers.rates import Tier

from .answer import Answer
from .facets import Origin, Restore, Reuse, Timestamps
from .speculation import Drafts

NO_SEQ_ID = -1
DETERMINISTIC_GROUP = "!"
"""Ends the name of a group of sequences whose steps hold nothing else."""
# Where a prefix is, in messages; None: in the KV cache.
CACHE_TIERS: Mapping[Tier | None, generation_pb2.CacheTier.ValueType] = {
    None: generation_pb2.CACHE_TIER_DEVICE,
    Tier.HOST: generation_pb2.CACHE_TIER_HOST,
    Tier.DISK: generation_pb2.CACHE_TIER_DISK,
}


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
    it `is_loaded`, under the `seq_id` that the memory gave it, else in `restore.state`, a copy in host
    memory, of which the first `position` tokens are wanted. A sequence that runs may be neither yet: it then
    waits for room.
    """

    key: str
    epoch: int
    slot: int | None
    # Lower is more urgent; no two are equal: (urgency key, arrival).
    order: tuple[float, int]
    tokens: TokenArray
    prompt_tokens: int
    max_tokens: int
    end_tokens: frozenset[int]
    sampler: Sampler
    answer: Answer
    origin: Origin
    times: Timestamps = field(default_factory=Timestamps)
    generated: int = 0
    position: int = 0
    phase: Phase = Phase.PREFILL
    seq_id: int = NO_SEQ_ID
    # Whether the prefill context computes it.
    in_prefill_context: bool = False
    # Whether its tokens are the same whatever else is cached or runs.
    is_deterministic: bool = False
    # Counts how often it was scheduled to run: its first run is 0.
    run: int = 0
    # Generated tokens at which it yields; 0: at none.
    yields_at: int = 0
    # Of its next tokens; None: none are made.
    drafts: Drafts | None = None
    # Of its prompt.
    images: SequenceImages = field(default_factory=SequenceImages)
    # Of its prompt's tokens, until the first token is told.
    prompt_scores: PromptScores | None = None
    restore: Restore = field(default_factory=Restore)
    reuse: Reuse = field(default_factory=Reuse)
    # What all its chunks begin with, serialized once.
    chunk_head: bytes = field(init=False)

    def __post_init__(self) -> None:
        head = tokens_pb2.TokenChunk(request_id=self.origin.request_id, epoch=self.epoch)
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
        adapter = self.origin.adapter
        return f"{adapter}{DETERMINISTIC_GROUP}" if self.is_deterministic else adapter

    @property
    def urgency_key(self) -> float:
        """Lower is more urgent."""
        return self.order[0]

    @property
    def deadline_s(self) -> float:
        """By the monotonic clock."""
        return self.times.deadline_s

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
        n, reasoning = end - self.generated, self.answer.reasoning
        return (n if reasoning is None else min(n, reasoning.n_free)) - 1

    @property
    def n_computable(self) -> int:
        """Pending tokens that a step may compute: it ends at a checkpoint, and where an image begins or
        ends."""
        n = self.n_pending
        if self.is_scored:
            n = min(n, SCORED_ROWS)
        checkpoint_at = self.reuse.checkpoint_at
        if self.position < checkpoint_at < self.n_tokens:
            n = checkpoint_at - self.position
        return self.images.computable(self.position, n) if self.images else n

    @property
    def n_indivisible(self) -> int:
        """Pending tokens that a step computes together or not at all; 0: any number of them."""
        return self.images.indivisible(self.position) if self.images else 0

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
        self.order = (urgency_key, self.order[1])
        self.yields_at = self.generated + token_budget if token_budget else 0

    def begin_at(self, position: int, tier: Tier | None = None) -> None:
        """Others have computed the tokens before `position`: their state is in this tier, or the KV cache."""
        self.position = position
        reuse = self.reuse
        if not reuse.has_begun:
            reuse.cached_prompt_tokens = min(position, self.prompt_tokens)
            reuse.cached_in = tier

    @property
    def cached_prompt_tier(self) -> generation_pb2.CacheTier.ValueType:
        """Tier that held the cached tokens of its prompt; unspecified if there were none."""
        reuse = self.reuse
        if not reuse.cached_prompt_tokens:
            return generation_pb2.CACHE_TIER_UNSPECIFIED
        return CACHE_TIERS[reuse.cached_in]

    def note_checkpoint(self, position: int) -> None:
        """Others may begin at `position`, or at what was noted before if that is farther."""
        self.reuse.checkpoint_at = max(self.reuse.checkpoint_at, self.images.shareable(position))

    def discard(self) -> None:
        """Count nothing as computed any more: all of it is prefilled again, or found."""
        self.go_back(0)
        self.restore.state = None
        self.restore.is_looked_up = False
        self.reuse.looked_up_at = min(self.reuse.looked_up_at, 0)

    def go_back(self, position: int) -> None:
        """The tokens from `position` on are prefilled again."""
        self.position = position
        self.phase = Phase.PREFILL
        reuse = self.reuse
        if not reuse.has_begun:
            reuse.cached_prompt_tokens = min(position, reuse.cached_prompt_tokens)

    def append(self, token: int) -> None:
        """The next token, sampled; `answer` takes it as well."""
        self.tokens[self.prompt_tokens + self.generated] = token
        self.generated += 1
        self.sampler.accept(token)
