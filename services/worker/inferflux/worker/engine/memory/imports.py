"""Imports: state that comes in pieces from other engines, mostly ahead of the request that it is of.

Each piece becomes a cached prefix, so a request begins with what has come as with any other prefix. It waits
while more comes, as long as that is sooner than computing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.envelope import Envelope, Refused, TokenArray, tokens_from
from inferflux.worker.engine.plan.facets import Arrival
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.tiers.pieces import PieceFiles

from .prefix_cache import PrefixCache
from .saved import SavedStates
from .taken import NotTaken, TakenPieces

_MOST_IMPORTS = 64
# An import ends when its request has not come this time after the last piece.
_REQUEST_S = 30.0
# A step waits at most this time for a request's last piece to be read.
_READ_S = 0.003


@dataclass(slots=True, eq=False)
class _Import:
    """An import.

    Attributes:
        id: None until the first piece of what a request waits for.
        arrival: as its request sees it.
        reads: files of pieces that are read, in order.
        tokens: its first tokens that are in the KV cache, as a cached prefix, or are not needed there.
        n_past: its first tokens that have come, read or not.
        has_all: whether no more pieces come.
    """

    id: int | None
    key: str
    arrival: Arrival
    sequence: Sequence | None = None
    reads: deque[tuple[str, Future[Envelope]]] = field(default_factory=deque)
    tokens: int = 0
    n_past: int = 0
    has_all: bool = False


class Imports:
    """The imports of an engine.

    Args:
        taken: takes pieces into the KV cache. prefixes: are kept there until their request comes.
        files: of pieces.
        clock_s: monotonic clock.

    Attributes:
        news: what is to be reported.
    """

    def __init__(
        self,
        taken: TakenPieces,
        prefixes: PrefixCache,
        saved: SavedStates,
        files: PieceFiles,
        clock_s: Callable[[], float],
    ) -> None:
        self._taken = taken
        self._prefixes = prefixes
        self._saved = saved
        self._files = files
        self._clock_s = clock_s
        # The latest of each key. Those that are over stay until their request comes.
        self._imports: dict[str, _Import] = {}
        self.news: list[engine_pb2.EngineImported] = []

    def __len__(self) -> int:
        """Imports that are not over."""
        return sum(not each.arrival.is_over for each in self._imports.values())

    @property
    def is_busy(self) -> bool:
        """True if a piece is read."""
        return any(each.reads for each in self._imports.values())

    def obey(self, command: engine_pb2.EngineImport) -> None:
        """Take the next piece of an import, or learn that no more come."""
        found = self._imports.get(command.key)
        if found is not None and found.id is None:
            found.id = command.id
        # Ids grow: an import that another one took the place of may have more to say, and does not end that.
        is_outdated = found is not None and found.id is not None and command.id < found.id
        if found is None or (found.id != command.id and not is_outdated):
            found = self._new(command, found)
        if found is None or found.arrival.is_over or is_outdated:
            if command.path:
                self._files.discard(command.path)
            if found is not None and not is_outdated:
                self._tell_late(found, command)
            return
        if command.token_ids:
            self._tell_known(found, command.cache_scope, tokens_from(command.token_ids))
        if command.path:
            found.arrival.progress_s = self._clock_s()
            found.n_past = command.n_past
            found.reads.append((command.path, self._files.read(command.path)))
        found.has_all |= command.is_over
        if not found.reads and found.has_all:
            self._end(found)

    def begin(self, sequence: Sequence) -> None:
        """A request has come: have it wait for what comes of it."""
        found = self._imports.get(sequence.key)
        if sequence.computes_all:
            if found is not None:
                self._end(found, "the request computes all of its prompt")
            return
        if found is None:
            if not sequence.origin.takes_state or not self._has_room():
                return
            found = self._imports[sequence.key] = _Import(None, sequence.key, Arrival(self._clock_s()))
        found.sequence, sequence.restore.arrival = sequence, found.arrival

    def poll(self) -> None:
        """Take what was read, as far as the step has time for it."""
        now_s = self._clock_s()
        has_time = True
        for each in list(self._imports.values()):
            if each.has_all and each.sequence is not None and each.reads:
                # All that it waits for: a step would take longer.
                began_s = self._clock_s()
                wait([each.reads[-1][1]], min(self._saved.copying_left_s, _READ_S))
                self._saved.copied(self._clock_s() - began_s)
            while each.reads and each.reads[0][1].done() and (has_time or self._saved.copying_left_s > 0):
                self._take(each)
                has_time = False
            has_begun = each.sequence is not None and each.sequence.position > 0
            if each.arrival.is_over:
                if has_begun or now_s - each.arrival.progress_s >= _REQUEST_S:
                    self._forget(each)
            elif each.has_all and not each.reads:
                self._end(each)
            elif _is_enough(each):
                each.tokens = max(each.tokens, each.n_past)
                self._end(each)
            elif each.sequence is not None and each.sequence.is_loaded:
                self._end(each, "the request has gone on without it")
            elif each.sequence is None and now_s - each.arrival.progress_s >= _REQUEST_S:
                self._end(each, f"its request did not come for {_REQUEST_S:g} s")

    def end(self, sequence: Sequence) -> None:
        """A request is here no more."""
        found = self._imports.get(sequence.key)
        if found is not None and found.sequence is sequence:
            self._end(found, "the request has ended")
            self._forget(found)

    def close(self) -> None:
        """The engine ends: nothing is taken any more."""
        for each in self._imports.values():
            self._drop(each)
        self._imports.clear()

    def _new(self, command: engine_pb2.EngineImport, before: _Import | None) -> _Import | None:
        """A new import, in place of one that was before; None if there are too many."""
        if before is None and not self._has_room():
            why = f"{_MOST_IMPORTS} imports are under way"
            self.news.append(engine_pb2.EngineImported(id=command.id, error=why))
            return None
        made = _Import(command.id, command.key, Arrival(self._clock_s()))
        if before is not None:
            self._end(before, "another one began")
            self._forget(before)
            if before.sequence is not None:
                made.sequence, before.sequence.restore.arrival = before.sequence, made.arrival
        self._imports[command.key] = made
        return made

    def _has_room(self) -> bool:
        """True if one more import can begin; those that are over give way."""
        if len(self._imports) >= _MOST_IMPORTS:
            over = next((key for key, each in self._imports.items() if each.arrival.is_over), None)
            if over is None:
                return False
            self._forget(self._imports[over])
        return True

    def _forget(self, each: _Import) -> None:
        del self._imports[each.key]
        self._prefixes.await_no_more(each.arrival.seq_id)

    def _tell_known(self, each: _Import, scope: str, tokens: TokenArray) -> None:
        """Say how many of its tokens are there already. They had better stay until the others come."""
        known = self._taken.known(scope, tokens)
        if known.holder is not None:
            self._prefixes.await_request(known.holder)
            each.tokens, each.arrival.seq_id = known.matched_tokens, known.holder
        self._tell(each)

    def _tell_late(self, each: _Import, command: engine_pb2.EngineImport) -> None:
        """Answer what comes after the end of its import."""
        if command.token_ids:
            self._tell(each, "its request goes on without it")
        elif command.path:
            each.tokens = max(each.tokens, command.n_past)
            self._tell(each)

    def _take(self, each: _Import) -> None:
        path, read = each.reads.popleft()
        began_s = self._clock_s()
        try:
            envelope = read.result()
            # What came before is awaited until then: room is not made of it.
            seq_id = self._taken.take(envelope)
            self._prefixes.await_no_more(each.arrival.seq_id)
            self._prefixes.await_request(seq_id)
            each.arrival.seq_id = seq_id
        except (NotTaken, Refused, OSError, ValueError, MemoryError) as error:
            self._end(each, f"a piece was not taken: {error}")
            return
        finally:
            self._files.taken(path)
            self._saved.copied(self._clock_s() - began_s)
        each.tokens = max(each.tokens, envelope.header.n_past)
        each.arrival.progress_s = self._clock_s()
        self._tell(each)

    def _end(self, each: _Import, why: str = "") -> None:
        """No more comes; `why` it ends before that, or empty."""
        if each.arrival.is_over:
            return
        each.arrival.is_over = True
        self._drop(each)
        self._tell(each, why)

    def _drop(self, each: _Import) -> None:
        """Remove what is not read."""
        while each.reads:
            self._files.discard(each.reads.popleft()[0])

    def _tell(self, each: _Import, why: str = "") -> None:
        if each.id is not None:
            self.news.append(engine_pb2.EngineImported(id=each.id, tokens=each.tokens, error=why))


def _is_enough(each: _Import) -> bool:
    """True if a request that moved need not wait to be told that no more comes."""
    sequence = each.sequence
    return sequence is not None and sequence.generated > 0 and each.tokens >= sequence.n_tokens - 1
