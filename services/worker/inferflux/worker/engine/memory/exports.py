"""Exports: state that leaves in pieces, while what it is of goes on.

Of a running request a piece leaves as soon as it is computed, and of a decoding one whenever enough tokens
have come. So little is left when the request itself leaves, and that goes at once. A prefix leaves from the
KV cache, or whole from host memory. State that cannot be divided leaves whole, with its request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.envelope import Envelope, StateBytes, TokenArray, tokens_from
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.tiers.index import BLOCK
from inferflux.worker.engine.tiers.pieces import PieceFiles
from inferflux.worker.engine.tiers.rates import Rate
from inferflux.worker.engine.tiers.tiers import Tiers

from .export import NEARLY_ALL, PIECE, Export, n_due
from .memory import Memory, can_be_left
from .saved import SavedStates

# Tokens that a step without time for copies copies all the same: the taker waits.
_FEWEST = 32
_MOST_EXPORTS = 64
# An export ends when none of its pieces was read for this time.
_READER_S = 10.0
# A request may come after the wish for its state.
_REQUEST_S = 2.0
# Files are looked at this often.
_LOOK_EVERY_S = 0.002


class ExportCache(Protocol):
    """Interface of the backend that reads parts of sequences."""

    @property
    def spare_id(self) -> int | None: ...

    def state_size(self, seq_id: int) -> int: ...

    def copy_out(self, seq_id: int, into: StateBytes) -> bool: ...

    def copy_part_out(self, seq_id: int, first: int, end: int, room: Callable[[int], StateBytes]) -> bool: ...


class _Unexported(Exception):
    """State cannot leave; says why."""


class Exports:
    """The exports of an engine.

    Args:
        residents: the requests that are here, by key.
        clock_s: monotonic clock.
        longest_s: that a request which leaves holds up others.

    Attributes:
        news: what is to be reported.
    """

    def __init__(
        self,
        cache: ExportCache,
        memory: Memory,
        saved: SavedStates,
        tiers: Tiers[Sequence],
        *,
        residents: Mapping[str, Sequence],
        clock_s: Callable[[], float],
        longest_s: float,
    ) -> None:
        self._cache = cache
        self._memory = memory
        self._saved = saved
        self._tiers = tiers
        self._files: PieceFiles = tiers.pieces
        self._residents = residents
        self._clock_s = clock_s
        self._longest_s = longest_s
        self._exports: dict[int, Export] = {}
        # Of what was written into files: longer than copies into memory that was used before.
        self._rate = Rate()
        self.news: list[engine_pb2.EnginePiece] = []

    def __len__(self) -> int:
        """Exports that are under way, or have unread pieces."""
        return len(self._exports)

    @property
    def is_busy(self) -> bool:
        """True if one goes on with the next look."""
        return self.is_due or any(e.told for e in self._exports.values())

    @property
    def is_due(self) -> bool:
        """True if one would copy more."""
        return any(e.is_due and not e.is_ended for e in self._exports.values())

    @property
    def can_go_on(self) -> bool:
        """True if one would copy more at once."""
        return self.is_due and not self._files.is_preparing

    def obey(self, command: engine_pb2.EngineExport) -> None:
        """Begin an export, or end one."""
        if command.is_over:
            export = self._exports.get(command.id)
            if export is not None:
                self._drop_files(export)
                self._forget(export)
            return
        now_s = self._clock_s()
        tokens = tokens_from(command.token_ids)
        key, known = command.key, command.known_tokens
        export = Export(command.id, key, command.cache_scope, tokens, known, now_s, now_s)
        export.sequence = self._residents.get(key) if key else None
        if command.id in self._exports or len(self._exports) >= _MOST_EXPORTS:
            why = f"{len(self._exports)} exports are under way"
            self.news.append(engine_pb2.EnginePiece(id=command.id, is_last=True, error=why))
            return
        self._exports[command.id] = export

    def poll(self) -> None:
        """Let each export go on, as far as the step has time for it."""
        now_s = self._clock_s()
        is_first = True
        for export in list(self._exports.values()):
            self._settle(export, now_s)
            exported = export.exported
            if not export.is_ended:
                try:
                    self._go_on(export, now_s, has_time=is_first)
                except (_Unexported, OSError) as error:
                    self._fail(export, str(error))
            elif not export.told and not export.unread:
                self._forget(export)
            if export.exported > exported and export.id in self._exports:
                is_first = False
                self._exports[export.id] = self._exports.pop(export.id)  # others come first next time

    def leave(self, sequence: Sequence, limit_s: float | None = None) -> bool:
        """Let go what has not left of a request that goes to another engine; return whether it is exported.

        Args:
            limit_s: the engine ends then: all goes at once. None: what takes too long goes later.
        """
        found = [e for e in self._exports.values() if e.sequence is sequence and not e.is_ended]
        for export in found:
            try:
                self._leave(export, sequence, limit_s)
            except (_Unexported, OSError) as error:
                self._fail(export, str(error))
        return bool(found)

    def wait_for_writes(self, seconds: float) -> None:
        """Return when all pieces are written, or after `seconds`; `news` has them then."""
        if self._exports:
            self._files.wait_for_writes(seconds)
            for export in self._exports.values():
                self._settle(export, self._clock_s())

    def end(self, sequence: Sequence) -> None:
        """A request is here no more."""
        for export in self._exports.values():
            if export.sequence is sequence and not export.is_ended:
                self._fail(export, "the request has ended")

    def close(self) -> None:
        """The engine ends. What is complete stays for those that read it."""
        for export in self._exports.values():
            if not export.is_ended:
                self._drop_files(export)
        self._exports.clear()

    def _settle(self, export: Export, now_s: float) -> None:
        """Report what is written, and look at what was read."""
        while export.told and (export.told[0][1] is None or export.told[0][1].done()):
            piece, write = export.told[0]
            why = write.exception() if write is not None else None
            if why is not None:
                self._fail(export, f"a piece was not written: {why}")
                return
            export.told.popleft()
            self.news.append(piece)
        if not export.unread or now_s - export.looked_s < _LOOK_EVERY_S:
            return
        export.looked_s = now_s
        unwritten = {piece.name for piece, _ in export.told}
        read = [n for n in export.unread if n not in unwritten and not self._files.is_unread(n)]
        for name in read:
            del export.unread[name]
        if read:
            export.read_s = now_s
        elif now_s - export.read_s >= _READER_S:
            self._fail(export, f"no piece was read for {_READER_S:g} s")

    def _fail(self, export: Export, why: str) -> None:
        """End an export, and remove what is not read of it."""
        is_end_told = export.is_ended and not any(piece.is_last for piece, _ in export.told)
        self._drop_files(export)
        if not is_end_told:
            export.tell(engine_pb2.EnginePiece(is_last=True, error=why))

    def _forget(self, export: Export) -> None:
        del self._exports[export.id]
        if not self._exports:
            self._files.prepare_no_more()

    def _drop_files(self, export: Export) -> None:
        export.told.clear()
        self._files.remove(*export.unread)
        export.unread.clear()

    def _go_on(self, export: Export, now_s: float, *, has_time: bool) -> None:
        if not self._files.is_there:
            raise _Unexported("there is no exchange")
        export.is_due = False
        if not export.key:
            self._go_on_with_prefix(export, has_time=has_time)
            return
        if export.sequence is None:
            export.sequence = self._residents.get(export.key)
        if export.sequence is not None:
            self._go_on_with_request(export, export.sequence, has_time=has_time)
        elif now_s - export.began_s >= _REQUEST_S:
            raise _Unexported("the request is not here")

    def _go_on_with_request(self, export: Export, sequence: Sequence, *, has_time: bool) -> None:
        if sequence.is_deterministic:
            raise _Unexported("a deterministic request is computed where it runs")
        is_complete = not sequence.is_prefilling
        if not sequence.is_loaded:
            state = sequence.restore.state
            # One that was found may go on in another way.
            if state is None or state.header.n_past != sequence.position or not can_be_left(sequence):
                return
            waiting = sequence.position - export.exported
            if n_due(waiting, is_complete=True, is_near=export.is_near):
                self._copy_saved(export, state, is_caught_up=not export.is_near)
            return
        if not self._is_divisible(sequence):
            if is_complete and not export.is_near:
                export.tell(engine_pb2.EnginePiece(is_caught_up=True))
            return
        tokens, scope = sequence.tokens, sequence.origin.cache_scope
        while due := n_due(
            sequence.position - export.exported, is_complete=is_complete, is_near=export.is_near
        ):
            end = export.exported + self._within_time(export, due, has_time=has_time)
            if end == export.exported:
                return
            is_near = is_complete and sequence.position - end <= NEARLY_ALL
            is_news = is_near and not export.is_near
            self._copy(export, sequence.seq_id, scope, tokens[:end], is_caught_up=is_news)
            has_time = False
        if is_complete and not export.is_near:
            export.tell(engine_pb2.EnginePiece(is_caught_up=True))

    def _go_on_with_prefix(self, export: Export, *, has_time: bool) -> None:
        """Let more of a prefix leave that is in the KV cache; from host memory, all of it."""
        prefixes, scope = self._memory.prefixes, export.scope
        match = prefixes.longest(scope, export.tokens)
        n_saved, saved = self._tiers.longest_in_host(scope, export.tokens)
        if saved is not None and n_saved >= max(match.matched_tokens, export.exported) + BLOCK:
            self._copy_saved(export, saved, is_last=True)
            return
        left = match.matched_tokens - export.exported
        if match.holder is None or left <= 0:
            raise _Unexported("no more of the prefix is cached")
        if not self._memory.is_divisible or self._cache.spare_id is None:
            tokens = prefixes.tokens_of(match.holder)
            if self._memory.last_position(match.holder) + 1 != tokens.shape[0]:
                raise _Unexported("what is cached of the prefix is in use, and cannot be divided")
            self._copy_whole(export, match.holder, scope, tokens)
            return
        while left and (n := self._within_time(export, min(left, PIECE), has_time=has_time)):
            left -= n
            tokens = export.tokens[: export.exported + n]
            self._copy(export, match.holder, scope, tokens, is_last=not left)
            if not any(each.is_running for each in self._residents.values()):
                break  # nothing is computed: each leaves as soon as it can
            has_time = False

    def _leave(self, export: Export, sequence: Sequence, limit_s: float | None) -> None:
        position, scope = sequence.position, sequence.origin.cache_scope
        if not self._files.is_there:
            raise _Unexported("there is no exchange")
        if sequence.is_deterministic:
            raise _Unexported("a deterministic request is computed where it runs")
        if position <= export.exported:
            if not position:
                raise _Unexported("nothing of the request is computed")
            export.tell(engine_pb2.EnginePiece(is_last=True))
        elif not sequence.is_loaded:
            if sequence.restore.state is None or not can_be_left(sequence):
                raise _Unexported("nothing of the request can be moved")
            self._copy_saved(export, sequence.restore.state, is_last=True)
        elif not self._is_divisible(sequence):
            if not can_be_left(sequence):
                raise _Unexported("a request with such images cannot be moved")
            self._copy_whole(export, sequence.seq_id, scope, sequence.tokens[:position])
        else:
            self._leave_rest(export, sequence, limit_s)

    def _leave_rest(self, export: Export, sequence: Sequence, limit_s: float | None) -> None:
        """Let pieces go at once, one after the other; what takes too long goes from the prefix that stays."""
        position, scope = sequence.position, sequence.origin.cache_scope
        until_s = self._clock_s() + (self._longest_s if limit_s is None else limit_s)
        while export.exported < position:
            end = min(export.exported + PIECE, position)
            is_full = limit_s is None and not export.has_room((end - export.exported) * export.token_bytes)
            if is_full or self._clock_s() >= until_s:
                break
            self._copy(export, sequence.seq_id, scope, sequence.tokens[:end], is_last=end == position)
        if limit_s is not None and not export.is_ended:
            export.tell(engine_pb2.EnginePiece(is_last=True, error="there is no time for the rest"))
        if not export.is_ended:
            self._memory.end_prefill_context(sequence)
            export.scope, export.tokens = scope, sequence.tokens[:position].copy()
            export.key, export.sequence = "", None

    def _is_divisible(self, sequence: Sequence) -> bool:
        """True if the state of a request can leave in pieces."""
        return self._memory.is_divisible and self._cache.spare_id is not None and not sequence.images

    def _within_time(self, export: Export, n: int, *, has_time: bool) -> int:
        """Number of `n` tokens that may be copied now.

        Args:
            has_time: whether a few are in any case.
        """
        left_s = self._saved.copying_left_s
        fewest = min(n, _FEWEST) if has_time else 0
        if not export.has_room(n * export.token_bytes):
            return 0
        export.is_due = True
        if self._files.is_preparing or (left_s <= 0 and not fewest):
            return 0
        token_s = export.token_bytes * self._rate.seconds_per_unit
        most = n if n * token_s <= left_s else int(left_s / token_s)
        return max(most if most >= min(n, _FEWEST) else 0, fewest)

    def _copy(
        self,
        export: Export,
        seq_id: int,
        scope: str,
        tokens: TokenArray,
        *,
        is_caught_up: bool = False,
        is_last: bool = False,
    ) -> None:
        """Have the state of the last of `tokens` leave, from what was exported on.

        Raises:
            OSError: there is no room for it.
            _Unexported: llama.cpp does not give it.
        """
        began_s, first = self._clock_s(), export.exported
        made: list[tuple[str, Envelope]] = []

        def room(n_bytes: int) -> StateBytes:
            made.append(self._files.blank(scope, tokens, first, n_bytes))
            return made[0][1].payload

        is_whole = self._cache.copy_part_out(seq_id, first, tokens.shape[0], room)
        name, envelope = made[0]
        export.token_bytes = envelope.n_bytes / (tokens.shape[0] - first)
        self._write(export, name, envelope, is_whole=is_whole, is_caught_up=is_caught_up, is_last=is_last)
        seconds = self._clock_s() - began_s
        self._rate.observe(envelope.n_bytes, seconds)
        if not is_last and tokens.shape[0] - first == PIECE:
            self._files.prepare(envelope.n_bytes)
        self._saved.copied(seconds)

    def _copy_whole(self, export: Export, seq_id: int, scope: str, tokens: TokenArray) -> None:
        """Have all state of a sequence leave as the last piece. Raises as `_copy`."""
        began_s = self._clock_s()
        name, envelope = self._files.blank(scope, tokens, 0, self._cache.state_size(seq_id))
        is_whole = self._cache.copy_out(seq_id, envelope.payload)
        self._write(export, name, envelope, is_whole=is_whole, is_last=True)
        self._saved.copied(self._clock_s() - began_s)

    def _write(
        self,
        export: Export,
        name: str,
        envelope: Envelope,
        *,
        is_whole: bool,
        is_caught_up: bool = False,
        is_last: bool = False,
    ) -> None:
        if not is_whole:
            self._files.remove(name)
            raise _Unexported("llama.cpp does not give its state")
        write = self._files.write(name, envelope)
        self._tell(export, name, envelope, write, is_caught_up=is_caught_up, is_last=is_last)

    def _copy_saved(
        self, export: Export, envelope: Envelope, *, is_caught_up: bool = False, is_last: bool = False
    ) -> None:
        """Have a state in host memory leave. Raises OSError: there is no room for it."""
        name, write = self._files.copy(envelope)
        self._tell(export, name, envelope, write, is_caught_up=is_caught_up, is_last=is_last)

    def _tell(
        self,
        export: Export,
        name: str,
        envelope: Envelope,
        write: Future[None],
        *,
        is_caught_up: bool,
        is_last: bool,
    ) -> None:
        header = envelope.header
        piece = engine_pb2.EnginePiece(
            name=name,
            first=header.first,
            n_past=header.n_past,
            n_bytes=header.n_bytes,
            is_caught_up=is_caught_up,
            is_last=is_last,
        )
        if not export.unread:
            export.read_s = self._clock_s()
        export.unread[name] = header.n_bytes
        export.exported = max(export.exported, header.n_past)
        export.tell(piece, write)
