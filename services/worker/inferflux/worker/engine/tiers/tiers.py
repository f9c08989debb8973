"""The tiers below the KV cache, as the engine's memory uses them.

State of a preempted sequence and of a cold prefix is kept in one way: by its tokens, in host memory first,
on disk when that is full. What a sequence does not find in the KV cache it may find here.
"""

from __future__ import annotations

import math
from typing import Generic

from inferflux.common.contract.callers.cache_scope import is_within
from inferflux.worker.engine.kv.envelope import Envelope, Identity, TokenArray, blank

from .disk import Disk, Event, Read
from .entries import Entries
from .exchange import Exchange
from .index import BLOCK, Found
from .kept import Kept, S
from .pieces import PieceFiles
from .rates import Counts, Rates, Tier
from .reads import Fetch, Match, Reads
from .searches import Search
from .space import Eviction, Order, Space
from .state_files import StateFiles

# A prefix that shares its beginning with a kept one adds this part of its tokens at least.
_LEAST_NEW = 1 / 8
# Comes before every sequence.
_MOST_URGENT: Order = (-math.inf, -1)


class Tiers(Generic[S]):
    """Host memory, and disk if there is one.

    Args:
        identity: of the context's state.
        host_bytes: most host memory.
        host_eviction: which cold prefixes leave host memory first.
        disk: None: there is no disk tier, and no exchange.
        disk_bytes: most bytes of files, and of the exchange; of shared memory, of both together.
        is_divisible: whether the first tokens of a state can be restored without the rest.

    Attributes:
        is_divisible: as above.
        preempted_bytes: host memory that holds the state of preempted sequences.
        rates: what restoring and computing take; the caller observes what it does itself.
        files: of the states on disk.
        exchange: with other engines of this machine.
        pieces: files of state that leaves in pieces, and comes so.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        host_bytes: int,
        host_eviction: Eviction = Eviction.LRU,
        disk: Disk | None = None,
        disk_bytes: int = 0,
        is_divisible: bool = True,
    ) -> None:
        self._identity = identity
        self.is_divisible = is_divisible
        self._disk = disk
        self._host: Space[Kept[S]] = Space(host_bytes, host_eviction)
        self._entries: Entries[S] = Entries(is_divisible=is_divisible)
        self.files: StateFiles[S] = StateFiles(disk, disk_bytes, self._entries, self._host)
        self._by_owner: dict[S, Kept[S]] = {}
        self._counts = Counts()
        self._reads: Reads[S] = Reads()
        self.exchange: Exchange[S] = Exchange(disk, disk_bytes, self.files, self._reads)
        exchange = disk.exchange_path if disk is not None else None
        self.pieces = PieceFiles(identity, exchange, disk_bytes, lambda: self.files.in_memory_bytes)
        # Scopes that were cleared before all files were known.
        self._cleared_early: set[str] = set()
        self.preempted_bytes = 0
        self.rates = Rates()

    @classmethod
    def off(cls) -> Tiers[S]:
        """Tiers that keep nothing."""
        return cls(Identity("", "", 0, 0, flash_attention=False, rope=""), host_bytes=0)

    def clear(self, scope: str = "") -> dict[Tier, tuple[int, int]]:
        """Give up every cold prefix. What preempted sequences wait for stays.

        Files that the disk has not told of yet are removed when it does.

        Args:
            scope: only of this one; empty: of every scope.

        Returns:
            (states, bytes) that are gone, by tier.
        """
        if self.is_scanning:
            self._cleared_early.add(scope)
        freed: dict[Tier, tuple[int, int]] = {}
        for tier, space, drop in (
            (Tier.HOST, self._host, self._drop_from_host),
            (Tier.DISK, self.files.space, self.files.remove),
        ):
            gone = [k for k in space.held() if k.owner is None and is_within(k.header.scope, scope)]
            freed[tier] = len(gone), sum(kept.n_bytes for kept in gone)
            for kept in gone:
                drop(kept)
        return freed

    def close(self) -> None:
        """Leave the disk to the next process. Files stay; copies of what is in host memory do not."""
        self.pieces.close()
        self.files.close()

    def used(self, tier: Tier) -> tuple[int, int]:
        """(bytes, states) in a tier."""
        space = self._host if tier is Tier.HOST else self.files.space
        return space.used, len(space)

    def take_counts(self) -> Counts:
        counts, self._counts = self._counts, Counts()
        counts.evictions[Tier.DISK], self.files.evictions = self.files.evictions, 0
        return counts

    def take_moved(self, most: int) -> list[Kept[S]]:
        """Return the states that went since the last call, and up to `most` of those that came or moved since
        they were last reported."""
        return self._entries.moves.take(most)

    @property
    def is_scanning(self) -> bool:
        """True if files of an earlier process may be found still, at the next `poll`."""
        return self._disk is not None and self._disk.is_scanning

    @property
    def has_moved(self) -> bool:
        """True if `take_moved` would give any."""
        return self._entries.moves.are_any

    def report_all(self) -> None:
        """All that is kept counts as if it had just come."""
        self._entries.moves.all_moved((*self._host.held(), *self.files.space.held()))

    def take_error(self) -> str:
        """Reason why the disk is not written to for a while; empty otherwise."""
        return self._disk.take_error() if self._disk else ""

    def blank(self, scope: str, tokens: TokenArray, payload_bytes: int) -> Envelope:
        """An envelope for the state of `tokens`, to be filled."""
        return blank(self._identity, scope, tokens, payload_bytes)

    def has_room(self, n_bytes: int, order: Order) -> bool:
        """True if host memory has room for the state of a preempted sequence of this order."""
        return self._host.losers(n_bytes, order) is not None

    def wants(self, scope: str, tokens: TokenArray, n_bytes: int, *, left: int = 0) -> bool:
        """True if a cold prefix should be kept: it is not yet, finds room, and is worth its copies.

        One that goes on after what is kept takes its place. One that differs from it within takes memory
        beside it: it has to add enough.

        Args:
            left: of its first tokens, how many stay in the KV cache.
        """
        if tokens.shape[0] < BLOCK or not (
            self._host.losers(n_bytes) is not None or self.files.has_room(n_bytes)
        ):
            return False
        known = left
        for found in self._entries.candidates(scope, tokens):
            is_contained = found.matched == found.value.header.n_past
            if not is_contained and tokens.shape[0] - found.matched < tokens.shape[0] * _LEAST_NEW:
                return False
            known = max(known, found.matched)
        return known < tokens.shape[0] and self.rates.is_worth_keeping(n_bytes, tokens.shape[0] - known)

    def keep(self, envelope: Envelope) -> None:
        """Keep a cold prefix, in host memory if it finds room there, else on disk."""
        kept: Kept[S] = Kept(envelope.header, envelope)
        self._entries.add(kept)
        losers = self._host.losers(kept.n_bytes)
        if losers is None:
            self.files.take(kept)
            return
        self._evict(losers)
        self._host.hold(kept, kept.n_bytes)
        self._drop_what_it_contains(kept)
        self.files.copy(kept)

    def hold(self, envelope: Envelope, owner: S) -> list[S] | None:
        """Keep the state of a preempted sequence in host memory until it resumes.

        Returns:
            Whose state was evicted for it; None if it finds no room itself, and is not kept.
        """
        losers = self._host.losers(envelope.n_bytes, owner.order)
        if losers is None:
            return None
        owners = [kept.owner for kept in losers if kept.owner is not None]
        self._evict(losers)
        kept = Kept(envelope.header, envelope, owner=owner)
        self._entries.add(kept)
        self._by_owner[owner] = kept
        self.preempted_bytes += kept.n_bytes
        self._host.hold(kept, kept.n_bytes, owner.order)
        self.files.copy(kept)
        return owners

    def limit_host(self, n_bytes: int) -> list[S]:
        """Keep to this much host memory from now on.

        Returns:
            The owners of the states that were evicted for that.
        """
        self._host.limit = n_bytes
        losers = self._host.losers(0, _MOST_URGENT) or []
        owners = [kept.owner for kept in losers if kept.owner is not None]
        self._evict(losers)
        return owners

    def resumed(self, owner: S) -> None:
        """Drop the state of a sequence that is in the KV cache again; nothing if none is held."""
        kept = self._disowned(owner)
        if kept is not None:
            self._drop_from_host(kept)

    def release(self, owner: S) -> None:
        """Keep the state of a sequence that left as a cold prefix; nothing if none is held."""
        kept = self._disowned(owner)
        if kept is None:
            return
        if kept.header.n_past < BLOCK:
            self._drop_from_host(kept)
        else:
            self._host.hold(kept, kept.n_bytes)

    def find(self, scope: str, tokens: TokenArray, *, known: int = 0) -> Match[S] | None:
        """Find what is restored sooner than computed: a prefix of `tokens` that is longer than `known`.

        The last token is never part of it: its logits are wanted.
        """
        best: tuple[float, Found[Kept[S]], tuple[int, int, int]] | None = None
        queued = self._disk.bytes_to_read if self._disk is not None else 0
        is_stalled = self._reads.is_stalled
        for found in self._entries.candidates(scope, tokens[:-1]):
            kept = found.value
            gained = found.matched - known
            if gained < BLOCK or (is_stalled and kept.tier is Tier.DISK):
                continue
            own_bytes = 0 if kept in self._reads else kept.n_bytes
            read_bytes = queued + own_bytes if kept.tier is Tier.DISK else 0
            cost = read_bytes, kept.n_bytes * found.matched // kept.header.n_past, gained
            gain_s = self.rates.gain_s(*cost)
            if best is None or gain_s > best[0]:
                best = gain_s, found, cost
        if best is None:
            return None
        gain_s, found, cost = best
        if gain_s <= 0:
            self.rates.refused(*cost)
            return None
        return Match(found.value, found.matched, self.rates.prefill_s(cost[-1]))

    def parts_at(self, scope: str, tokens: TokenArray, known: int) -> int:
        """Find the point at which `tokens` part from those of the states, if these are of no use for want of
        a shorter one.

        Returns:
            The number of first tokens; 0: hardly more than `known`, or a part of a state can be used.
        """
        if self.is_divisible:
            return 0
        longest = self._entries.longest(scope, tokens[:-1])
        return longest if longest >= known + BLOCK else 0

    def fetch(self, match: Match[S]) -> Fetch[S]:
        """Begin to bring a match to host memory. One that is there already is done at once, and a file that
        is being read is not read twice."""
        kept = match.kept
        self._host.use(kept)
        self.files.space.use(kept)
        fetch = Fetch(match, match.tier, match.tokens)
        if kept.envelope is None and self._disk is not None:
            self._reads.begin(fetch, self._disk)
        return fetch

    def fetched(self, fetch: Fetch[S]) -> Envelope | None:
        """The state that a fetch brought, which is done; None if its file is damaged or gone."""
        kept = fetch.match.kept
        read = self._reads.finish(fetch)
        envelope = kept.envelope if read is None else self._take_read(kept, read)
        if envelope is not None:
            self._counts.hits[fetch.tier] += 1
        return envelope

    def abandon(self, fetch: Fetch[S], *, is_late: bool = False) -> None:
        """Wait no longer for a fetch. What it brings later is kept, and tells how long it took.

        Args:
            is_late: it took too long: the disk is not read until it is over.
        """
        self._reads.abandon(fetch, is_late=is_late)

    def _take_read(self, kept: Kept[S], read: Read) -> Envelope | None:
        """Return the envelope that a read gave of a state; None if its file is damaged or gone."""
        if read.envelope is None:
            if kept.name:
                self.files.remove(kept)
            return None
        self.rates.read.observe(read.envelope.n_bytes, read.seconds)
        self._promote(kept, read.envelope)
        self.files.taken(kept)
        return read.envelope

    def poll(self) -> None:
        """Take over what the disk did meanwhile."""
        if self._disk is None:
            return
        for abandoned, read in self._reads.take_abandoned():
            self._take_read(abandoned, read)
        for change in self._disk.changes():
            kept = self.files.named(change.name)
            if change.event is Event.FOUND:
                if kept is None:
                    scope = change.header.scope
                    is_cleared = any(is_within(scope, cleared) for cleared in self._cleared_early)
                    self.files.found(change.name, change.header, is_wanted=not is_cleared)
            elif kept is None or kept.header is not change.header:
                continue  # it was removed meanwhile, and may be written again
            elif change.event is Event.LOST:
                self.files.forget(kept)
            else:
                self.files.written(change.name, kept)
        self.exchange.drop_found()
        if not self.is_scanning:
            self._cleared_early.clear()

    def wants_on_disk(self, scope: str, tokens: TokenArray, n_bytes: int) -> bool:
        """True if a prefix should be written to disk at once: there is room, and much of it is not there."""
        disk = self._disk
        if disk is None or tokens.shape[0] < BLOCK or not self.files.has_room(n_bytes):
            return False
        on_disk = (found.matched for found in self._entries.candidates(scope, tokens) if found.value.name)
        new = tokens.shape[0] - max(on_disk, default=0)
        return new >= tokens.shape[0] * _LEAST_NEW and self.rates.is_worth_keeping(n_bytes, new)

    def keep_on_disk(self, envelope: Envelope) -> None:
        """Have a prefix written to disk that was found to be wanted there; host memory does not keep it."""
        kept: Kept[S] = Kept(envelope.header, envelope)
        self._entries.add(kept)
        self.files.take(kept)

    def containing(self, scope: str, tokens: TokenArray) -> Kept[S] | None:
        """A state that is kept and begins with all of these tokens."""
        for found in self._entries.candidates(scope, tokens):
            if found.matched == tokens.shape[0]:
                return found.value
        return None

    def longest_in_host(self, scope: str, tokens: TokenArray) -> tuple[int, Envelope | None]:
        """(how many first tokens it has, the state) of the longest prefix in host memory; (0, None): none."""
        for found in self._entries.candidates(scope, tokens):
            if found.value.envelope is not None:
                return found.matched, found.value.envelope
        return 0, None

    def has_nearly_all(self, search: Search) -> bool:
        """True if what is searched for is kept already."""
        found = next(self._entries.candidates(search.scope, search.tokens), None)
        return found is not None and search.has_nearly_all(found.matched)

    def held_for(self, owner: S) -> Kept[S] | None:
        """The state of a preempted sequence; None if none is held."""
        return self._by_owner.get(owner)

    def cold_in_host(self) -> list[Kept[S]]:
        """The cold prefixes in host memory, the last used first."""
        return self._host.cold()

    def stored(self, seconds: float) -> tuple[int, int]:
        """(states, bytes) that `store` wrote and that are on disk now, after `seconds` at most."""
        if self._disk is not None:
            self._disk.wait_for_writes(seconds)
        self.poll()
        return self.files.stored()

    def _disowned(self, owner: S) -> Kept[S] | None:
        """The state of a preempted sequence, which is a cold prefix from now on."""
        kept = self._by_owner.pop(owner, None)
        if kept is not None:
            kept.owner = None
            self.preempted_bytes -= kept.n_bytes
            self.files.disowned(kept)
        return kept

    def _evict(self, losers: list[Kept[S]]) -> None:
        """Move what has to leave host memory to disk."""
        self._host.evict(losers)
        for kept in losers:
            self._counts.evictions[Tier.HOST] += 1
            if kept.owner is not None:
                self._disowned(kept.owner)
            self.files.take(kept)

    def _drop_from_host(self, kept: Kept[S]) -> None:
        self.files.drop_copy(kept)
        self._host.release(kept)
        kept.envelope = None
        self._entries.moves.moved(kept)
        if not kept.name:
            self._entries.remove(kept)

    def _drop_what_it_contains(self, kept: Kept[S]) -> None:
        """Free the host memory of cold prefixes that `kept` begins with."""
        if not self.is_divisible:
            return
        for found in list(self._entries.candidates(kept.header.scope, kept.tokens)):
            other = found.value
            is_contained = found.matched == other.header.n_past
            if other is not kept and is_contained and other.owner is None and other in self._host:
                self._drop_from_host(other)

    def _promote(self, kept: Kept[S], envelope: Envelope) -> None:
        """Keep in host memory what was read from disk, if it finds room there."""
        losers = self._host.losers(envelope.n_bytes)
        if losers is not None and kept.envelope is None and kept.name:
            self._evict(losers)
            kept.envelope = envelope
            self._host.hold(kept, kept.n_bytes)
            self._entries.moves.moved(kept)
