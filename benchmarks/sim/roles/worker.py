"""A modelled worker that has a role, caches prefixes in blocks, and fetches KV state from others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.sim.contract import Sequence as Resident
from benchmarks.sim.worker import ModelledWorker, WorkerModel
from benchmarks.traces.request import BLOCK_TOKENS
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import scheduler_pb2, worker_pb2

from .blocks import BlockCache, BlockIndex
from .links import Export, Fetch, Links

# A request that waits for its state goes on without when nothing has come for this long.
_PATIENCE_S = 2.0
_SAME_S = 1e-6
# A fetch that a batch begins is given up after this.
_LIMIT_S = 30.0
# A fetch that no request comes for is forgotten after this; so is the end of a request that was left to it.
_KEPT_S = 30.0
_MOST_LEFT = 1024


class RoleWorker(ModelledWorker):
    """As `ModelledWorker`, with a cache of blocks.

    Args:
        role: said in heartbeats.
        blocks_of: names of the blocks of a request's prompt.
        index: of all workers' blocks.
        links: None: it neither fetches nor sends.
        on_computed: told of tokens of prompts that were computed.
        rest: as of `ModelledWorker`.
    """

    cache: BlockCache  # type: ignore[assignment]

    def __init__(
        self,
        worker_id: str,
        model: WorkerModel,
        *,
        role: scheduler_pb2.WorkerRole.ValueType,
        blocks_of: Callable[[RequestKey], Sequence[int]],
        index: BlockIndex,
        links: Links | None,
        on_computed: Callable[[RequestKey, int], None],
        **rest: Any,
    ) -> None:
        super().__init__(worker_id, model, **rest)
        self.role = role
        self.cache = BlockCache(index, worker_id)
        self.fetches: dict[RequestKey, Fetch] = {}
        self.transfers = scheduler_pb2.KvTransfers()
        self.has_left: OrderedDict[tuple[RequestKey, int], int] = OrderedDict()
        self._blocks_of = blocks_of
        self._links = links
        self._on_computed = on_computed
        self._held: dict[RequestKey, Sequence[int]] = {}
        self._waiting: set[RequestKey] = set()

    # What it says

    def status(self) -> scheduler_pb2.WorkerStatus:
        status = super().status()
        if self._links is not None:
            source = status.kv_source
            source.worker_id, source.incarnation = self.worker_id, self.incarnation
            source.address, source.ticket = f"{self.worker_id}:1", "simulated"
            self.transfers.under_way = sum(not fetch.is_over for fetch in self.fetches.values())
            status.kv_transfers.CopyFrom(self.transfers)
            n_bytes = self._links.network.bytes_per_token
            status.models[0].kv_bytes_per_token, status.kv_bytes = n_bytes, n_bytes * self.size.kv_cells
        return status

    @property
    def cells_used(self) -> int:
        return super().cells_used + sum(fetch.here for fetch in self.fetches.values())

    @property
    def is_idle(self) -> bool:
        """True if it has nothing to do or to say."""
        return not (self.residents or self.fetches or self.events or self._plan)

    # What it computes and caches

    def on_computed(self, sequence: Resident, tokens: int) -> None:
        self._on_computed(sequence.key, tokens)

    def generate(self, sequence: Resident, tokens: int) -> None:
        if sequence.key not in self._held:  # its prompt is computed: others can share it
            self._hold(sequence.key, self._blocks_of(sequence.key))
        super().generate(sequence, tokens)

    def remove(self, sequence: Resident, *, leaves_state: bool = False) -> None:
        key = sequence.key
        del self.residents[key]
        self._waiting.discard(key)
        if key not in self._held:
            self._hold(key, self._blocks_of(key)[: sequence.computed // BLOCK_TOKENS])
        self._let_go(key)
        if leaves_state and sequence.computed:
            self.has_left[key, sequence.epoch] = sequence.computed
            if len(self.has_left) > _MOST_LEFT:
                self.has_left.popitem(last=False)
        if self._links is not None:
            self._links.touch(self.worker_id, key)

    def die_engine(self) -> None:
        super().die_engine()
        self._held.clear()
        self._waiting.clear()
        self.fetches.clear()
        self.has_left.clear()

    def _hold(self, key: RequestKey, blocks: Sequence[int]) -> None:
        self._held[key] = blocks
        self.cache.hold(blocks)

    def _let_go(self, key: RequestKey) -> None:
        self.cache.release(self._held.pop(key, ()))

    # What it fetches

    def take_state(self, wanted: worker_pb2.TakeState) -> None:
        key = RequestKey(wanted.tenant, wanted.request_id)
        fetch = self._fetch(key, wanted.origin, wanted.limit_ms / 1000)
        if fetch is None:
            super().take_state(wanted)
        else:
            fetch.is_ordered = True

    def take_no_more(self, key: RequestKey, epoch: int) -> None:
        fetch = self.fetches.get(key)
        if fetch is not None and self._links is not None and 0 < fetch.epoch <= epoch:
            fetch.is_ordered = False
            self._links.give_up(self, fetch, "superseded")
            self._forget(fetch)

    def reuse(self, sequence: Resident, item: worker_pb2.BatchItem) -> None:
        """Begin with what is cached or was fetched, once that is here."""
        key = sequence.key
        self._let_go(key)
        del sequence.request.prompt_token_ids[:]  # their number is known: a thousand workers have millions
        if item.HasField("state_from"):
            self._fetch(key, item.state_from, _LIMIT_S)
        fetch = self.fetches.get(key)
        if fetch is None or fetch.is_over:
            self._begin_with_cached(sequence)
        else:
            self._waiting.add(key)
            fetch.progressed_s = max(fetch.progressed_s, self._now_s)
            self._lose_patience(fetch)

    @property
    def _now_s(self) -> float:
        return 0.0 if self._links is None else self._links.events.now

    def must_wait(self, sequence: Resident) -> bool:
        return sequence.key in self._waiting

    def export(self, key: RequestKey, epoch: int) -> Export | None:
        """What of a request, or of the prefix of its prompt, it could send now; None: nothing any more."""
        if not epoch:
            tokens = self.cache.match(self._blocks_of(key)) * BLOCK_TOKENS
            return Export(tokens, is_ahead=True, is_all=True) if tokens else None
        sequence = self.residents.get(key)
        if sequence is not None and sequence.epoch == epoch:
            return Export(sequence.computed, is_ahead=sequence.computed >= sequence.prompt, is_all=False)
        left = self.has_left.get((key, epoch))
        return None if left is None else Export(left, is_ahead=True, is_all=True)

    def on_piece(self, fetch: Fetch) -> None:
        """More of a state is here. The scheduler is told once that it has caught up."""
        self.transfers.bytes_per_s = fetch.rate or self.transfers.bytes_per_s
        if fetch.has_caught_up:
            self._tell_taken(fetch)

    def on_fetch_over(self, fetch: Fetch, now: float) -> None:
        """No more of it comes: the request goes on with what is here, if it waits for that."""
        self.transfers.done += not fetch.error
        self.transfers.failed += bool(fetch.error)
        self.transfers.bytes += fetch.n_bytes
        self._tell_taken(fetch)
        sequence = self.residents.get(fetch.key)
        if sequence is None or fetch.key not in self._waiting:
            return
        self._interrupt(now)
        self._waiting.discard(fetch.key)
        self._begin_with_cached(sequence)
        self._go_on(now)

    def _fetch(self, key: RequestKey, origin: worker_pb2.StateOrigin, limit_s: float) -> Fetch | None:
        """Begin to fetch, unless that has begun; None without a network."""
        known, source = self.fetches.get(key), origin.source
        if known is not None and (known.epoch, known.source_id) == (origin.epoch, source.worker_id):
            return known
        if self._links is None:
            return None
        here = self.cache.match(self._blocks_of(key)) * BLOCK_TOKENS
        fetch = Fetch(key, origin.epoch, source.worker_id, source.incarnation, here, self._now_s)
        self.fetches[key] = fetch
        self._links.begin(self, fetch, limit_s)
        self._links.events.after(limit_s + _KEPT_S, self._forget, fetch)
        return fetch

    def _forget(self, fetch: Fetch) -> None:
        if self.fetches.get(fetch.key) is fetch:
            del self.fetches[fetch.key]

    def _lose_patience(self, fetch: Fetch) -> None:
        """Look again when a request has waited for a piece for long enough."""
        if self._links is None or fetch.is_over:
            return
        self._links.events.at(fetch.progressed_s + _PATIENCE_S, self._look_whether_it_comes, fetch)

    def _look_whether_it_comes(self, fetch: Fetch) -> None:
        if self._links is None or fetch.key not in self._waiting:
            return
        if self._now_s - fetch.progressed_s >= _PATIENCE_S - _SAME_S:
            self._links.give_up(self, fetch, "timeout")
        else:
            self._lose_patience(fetch)

    def _begin_with_cached(self, sequence: Resident) -> None:
        fetch = self.fetches.pop(sequence.key, None)
        found = self.cache.use(self._blocks_of(sequence.key)) * BLOCK_TOKENS
        if fetch is not None:
            found = max(found, fetch.here)
        sequence.computed = min(found, sequence.prompt + sequence.generated - 1)
        sequence.cached = min(sequence.computed, sequence.prompt)

    def _tell_taken(self, fetch: Fetch) -> None:
        if not fetch.is_ordered:
            return
        fetch.is_ordered = False
        event = self.event()
        taken = event.state_taken
        taken.tenant, taken.request_id = fetch.key
        taken.epoch, taken.tokens, taken.error = fetch.epoch, fetch.here, fetch.error
        self.tell(event)
