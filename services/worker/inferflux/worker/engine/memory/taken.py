"""Pieces of other engines, taken into the KV cache as cached prefixes."""

from __future__ import annotations

from typing import Protocol

from inferflux.worker.engine.kv.envelope import Envelope, StateBytes, TokenArray
from inferflux.worker.engine.kv.radix import Match
from inferflux.worker.engine.kv.seq_ids import SeqIds

from .prefix_cache import SHORTEST_MATCH, PrefixCache


class PieceCache(Protocol):
    """Interface of the backend that takes parts of sequences."""

    @property
    def spare_id(self) -> int | None: ...

    def has_positions(self, state: StateBytes, first: int, end: int) -> bool: ...

    def copy_in(self, seq_id: int, state: StateBytes) -> bool: ...

    def append(self, seq_id: int, state: StateBytes) -> bool: ...


class NotTaken(Exception):
    """A piece that does not go into the KV cache; says why."""


class TakenPieces:
    """Takes pieces.

    Args:
        cache: the KV cache.
        seq_ids: whose ids and cells pieces take.
        prefixes: keep what was taken, and make room for it. No request does.
    """

    def __init__(self, cache: PieceCache, seq_ids: SeqIds, prefixes: PrefixCache) -> None:
        self._cache = cache
        self._seq_ids = seq_ids
        self._prefixes = prefixes

    def known(self, scope: str, tokens: TokenArray) -> Match:
        """The longest part of `tokens` that is there, after which a piece may begin."""
        match = self._prefixes.longest(scope, tokens) if self._takes_parts else Match(0, None)
        return match if match.matched_tokens >= SHORTEST_MATCH else Match(0, None)

    @property
    def _takes_parts(self) -> bool:
        prefixes = self._prefixes
        return prefixes.is_on and prefixes.is_divisible and self._cache.spare_id is not None

    def take(self, envelope: Envelope) -> int:
        """Have a piece of this model in the KV cache: all its tokens are a cached prefix then.

        Returns:
            A sequence id that has them.

        Raises:
            NotTaken: the tokens before it are not there, or there is no room. Nothing of it is kept.
        """
        header, prefixes, seq_ids = envelope.header, self._prefixes, self._seq_ids
        scope, tokens, first = header.scope, header.tokens[: header.n_past], header.first
        if not prefixes.is_on:
            raise NotTaken("no prefixes are cached here")
        if first and not self._takes_parts:
            raise NotTaken("state cannot be divided here")
        known = prefixes.longest(scope, tokens)
        if known.holder is not None and known.matched_tokens >= header.n_past:
            return known.holder
        prefixes.make_room(ids=1)
        if not seq_ids.n_free:
            raise NotTaken("no sequence id is free")
        seq_id = seq_ids.take()
        try:
            if first:
                self._begin_with(seq_id, envelope)
            self._append(seq_id, envelope)
        except BaseException:
            seq_ids.give_back(seq_id)
            raise
        prefixes.keep(seq_id, scope, tokens)
        return seq_id

    def _begin_with(self, seq_id: int, envelope: Envelope) -> None:
        """Have a sequence id begin with what is there of the tokens before a piece."""
        header = envelope.header
        match = self._prefixes.longest(header.scope, header.tokens[: header.first])
        if match.holder is None or match.matched_tokens < header.first:
            raise NotTaken(f"it begins at {header.first}, and {match.matched_tokens} tokens are here")
        self._seq_ids.share(match.holder, seq_id, header.first)

    def _append(self, seq_id: int, envelope: Envelope) -> None:
        header, ledger = envelope.header, self._seq_ids.ledger
        n = header.n_past - header.first
        if not self._cache.has_positions(envelope.payload, header.first, header.n_past):
            raise NotTaken("its payload has other positions than it says")
        self._prefixes.make_room(cells=n)
        if ledger.free < n:
            raise NotTaken(f"{n} KV cells are wanted, and {ledger.free} are free")
        take = self._cache.append if header.first else self._cache.copy_in
        if not take(seq_id, envelope.payload):
            raise NotTaken("llama.cpp does not take it")
        ledger.use(seq_id, n)
        if self._seq_ids.positions(seq_id)[1] != header.n_past - 1:
            raise NotTaken("its payload has other positions than it says")
