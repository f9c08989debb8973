"""Facets of a sequence: what is not read in every step. Each is changed by one part of the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferflux.worker.engine.kv.envelope import Envelope
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.reads import Fetch
from inferflux.worker.engine.tiers.searches import Search


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts of the request that never change here.

    Attributes:
        model, adapter_name: as clients name them.
        adapter: digest of the adapter that computes it; empty: none. A step holds sequences of one adapter.
        cache_scope: requests of the same scope share cached prefixes.
        is_retry: whether another process had it before.
        seeks_state: whether that one is dead, or has left its state to others.
        takes_state: whether its state comes from another engine in pieces.
    """

    request_id: str
    attempt_id: str = ""
    model: str = ""
    adapter_name: str = ""
    adapter: str = ""
    cache_scope: str = ""
    is_retry: bool = False
    seeks_state: bool = False
    takes_state: bool = False


@dataclass(slots=True)
class Timestamps:
    """When things happened, by the monotonic clock, and what chunks have said of it; `step/` changes it.

    Attributes:
        scheduled_at_s: when it last got a slot.
        first_token_s: when this engine sampled its first token.
        is_announced: whether a chunk has said that it has started.
    """

    started_s: float = 0.0
    enqueued_s: float = 0.0
    queue_ms: float = 0.0
    deadline_s: float = math.inf
    scheduled_at_s: float = 0.0
    first_token_s: float | None = None
    time_to_first_token_ms: float = 0.0
    is_announced: bool = False


@dataclass(slots=True, eq=False)
class Arrival:
    """What comes of a request from another engine, in pieces; `memory/imports.py` changes it.

    Attributes:
        progress_s: when the last piece was taken, by the monotonic clock.
        is_over: whether no more comes.
        seq_id: a cached prefix that has what came; None: nothing did.
    """

    progress_s: float
    is_over: bool = False
    seq_id: int | None = None


@dataclass(slots=True)
class Restore:
    """What the tiers below the KV cache have of it; `memory/saved.py` changes it.

    Attributes:
        state: a copy of what is computed; None while it is in the KV cache, or nowhere.
        fetch: a prefix on its way to host memory, since `fetch_began_s`, by the monotonic clock.
        restored_from: where `state` is from if it was found.
        is_looked_up: whether the tiers were asked.
        search: for what another process left of it.
        arrival: what comes of it from another engine; None: nothing does.
    """

    state: Envelope | None = None
    fetch: Fetch[Any] | None = None
    fetch_began_s: float = 0.0
    restored_from: Tier | None = None
    is_looked_up: bool = False
    search: Search | None = None
    arrival: Arrival | None = None


@dataclass(slots=True)
class Reuse:
    """What others have computed of it; `memory/memory.py` changes it.

    Attributes:
        looked_up_at: the version of the cached prefixes when its prompt was last looked up; -1: never.
        had_hit: whether a prefix of it was found among them.
        known_tokens: what the KV cache had of it when the tiers below were asked.
        checkpoint_at: a position at which a step is to end, so that others can begin there; 0: none.
        cached_prompt_tokens: of the prompt, what was found computed when it first ran. What is found later
            may be its own.
        cached_in: in which tier; None: in the KV cache.
        has_begun: whether a step has computed tokens of it, here or in another process.
        is_counted: whether one has here.
    """

    looked_up_at: int = -1
    had_hit: bool = False
    known_tokens: int = 0
    checkpoint_at: int = 0
    cached_prompt_tokens: int = 0
    cached_in: Tier | None = None
    has_begun: bool = False
    is_counted: bool = False
