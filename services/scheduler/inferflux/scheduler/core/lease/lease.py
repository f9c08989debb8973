"""Lease that decides which scheduler leads (pure): it stands on one key of a store that writes only over the
revision it is given.

The holder writes the key again and again. A process that sees it unchanged for longer than the lease, by its
own clock, may write itself in; the store takes the first. Clocks are never compared: the holder counts from
before it sent its last successful write, and gives up dispatching earlier than anyone who read that write can
have waited the lease out. See Gray and Cheriton, "Leases" (1989), and Chubby's sequencers for what terms are
for: a process that was stopped between looking at its lease and acting is refused by every process that saw a
later term.

    STANDBY ──> LEADER ──> LEAVING ──> STANDBY
                  └──── another holds it ──┘
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto

from inferflux.common.contract import terms

# After a read or write without an answer.
_RETRY_S = 0.1
_UNKNOWN = "unknown"
# A record takes about 200 bytes. What is longer, or nested, was not written here.
_MAX_RECORD_BYTES = 512
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of a lease in seconds, all derived from how long an unchanged lease stands."""

    duration_s: float = 1.5

    @property
    def renew_s(self) -> float:
        """Between the holder's writes."""
        return self.duration_s / 3

    @property
    def lapse_s(self) -> float:
        """A holder that has not written for this long no longer counts on its lease."""
        return self.duration_s * 0.8

    @property
    def poll_s(self) -> float:
        """Between a standby's reads."""
        return self.duration_s / 6

    @property
    def answer_s(self) -> float:
        """Longest time that a read or write may take, in seconds: a second try must fit before the lapse."""
        return self.duration_s / 5


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Value of the lease's key. `holder` is empty after a holder has left in order.

    `incarnation` tells processes of the same name apart; `term` rises with every holder, `beat` with every
    write of one.
    """

    holder: str = ""
    incarnation: str = ""
    term: int = 0
    beat: int = 0

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaseRecord:
        """Read a value. One that is not a record of ours has an unknown holder."""
        unknown = cls(holder=_UNKNOWN)
        if len(data) > _MAX_RECORD_BYTES:
            return unknown
        try:
            fields = json.loads(data)
            record = cls(
                holder=str(fields["holder"]),
                incarnation=str(fields["incarnation"]),
                term=int(fields["term"]),
                beat=int(fields["beat"]),
            )
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
            return unknown
        is_counted = 0 <= record.term <= _MAX_NUMBER and 0 <= record.beat < _MAX_NUMBER
        return record if is_counted else unknown


@dataclass(frozen=True, slots=True)
class Read:
    """Read the key."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the key over `revision`; 0: over nothing."""

    record: LeaseRecord
    revision: int


class Role(Enum):
    STANDBY = auto()
    LEADER = auto()
    # It has stopped leading, and says so.
    LEAVING = auto()


@dataclass(frozen=True, slots=True)
class _Seen:
    """Value last read from the key, and the time since which it stands by this process's clock."""

    record: LeaseRecord | None
    revision: int
    since_s: float


class Lease:
    """One process's view of the lease. One `Read` or `Write` is under way at a time, and each is answered
    by `on_read`, `on_written` or `on_unanswered`.

    Args:
        holder: this process's name; one that finds its own name at its start takes the lease at once, for
            the process that held it is gone.
        incarnation: what no other process has.
    """

    def __init__(self, holder: str, incarnation: str, times: LeaseTimes) -> None:
        self.times = times
        self.role = Role.STANDBY
        self.term = 0
        # When the next read or write is due, in seconds of the clock that every `now` is of.
        self.due_s = 0.0
        # Whether a leader is known to live, or to have lived since this process started.
        self.has_seen_leader = False
        self._own = LeaseRecord(holder, incarnation)
        self._revision = 0
        self._must_read = True
        self._is_release = False
        self._sent_s = 0.0
        self._renewed_s = 0.0
        self._seen: _Seen | None = None
        self._highest_term = 0
        # No later term is believed; nothing is before the time is known.
        self._latest_term = 0
        self._claim_from_s = 0.0
        # Whether this process is to lead; else it leads only where none that is to does.
        self._is_wanted = True

    @property
    def is_leader(self) -> bool:
        """True if it leads as far as it knows; see `is_held`."""
        return self.role is Role.LEADER

    def is_held(self, now: float) -> bool:
        """True if it leads and no other scheduler can."""
        return self.role is Role.LEADER and now - self._renewed_s < self.times.lapse_s

    @property
    def holder(self) -> str:
        """The scheduler that was last seen to lead, or to have led; empty when none was."""
        if self.role is Role.LEADER:
            return self._own.holder
        record = self._seen.record if self._seen is not None else None
        return record.holder if record is not None else ""

    def next(self, now: float, unix_ms: int) -> Read | Write | None:
        """Return the read or write to make now; None: nothing before `due_s`.

        Args:
            unix_ms: a new term is at least this, so that terms rise even when the store lost them.
        """
        self._latest_term = terms.latest(unix_ms)
        if now < self.due_s:
            return None
        if self._must_read:
            return Read()
        self._sent_s = now
        self._is_release = self.role is Role.LEAVING
        if self.role is Role.STANDBY:
            term = max(self._highest_term + 1, unix_ms)
            self._own = replace(self._own, term=term, beat=0)
        self._own = replace(self._own, beat=self._own.beat + 1)
        record = replace(self._own, holder="") if self._is_release else self._own
        return Write(record, self._revision)

    def on_read(self, value: bytes | None, revision: int, now: float) -> None:
        """The key's value, None without one."""
        record = None if value is None else LeaseRecord.decode(value)
        if record is not None and record.term > self._latest_term:
            record = LeaseRecord(holder=_UNKNOWN)
        if record is not None:
            self._highest_term = max(self._highest_term, record.term)
        if self.role is Role.STANDBY:
            self._look(record, revision, now)
        elif record is None or self._is_own(record):
            if record is not None and record.beat == self._own.beat:  # its answer was lost
                self._renewed_s = self._sent_s
            self._write_over(revision, now)
        else:
            self._stand_by(record, revision, now)

    def on_written(self, revision: int | None, now: float) -> None:
        """The answer to a Write: its revision, None when the key held another than it should."""
        if revision is None:
            self._must_read, self.due_s = True, now
            return
        if self._is_release:
            self._stand_by(replace(self._own, holder=""), revision, now)
            return
        self._revision = revision
        self._renewed_s = self._sent_s
        self.due_s = self._sent_s + self.times.renew_s
        if self.role is Role.STANDBY:
            self.role, self.term = Role.LEADER, self._own.term
            self._highest_term = max(self._highest_term, self.term)
            self.has_seen_leader = True
        if now < self._claim_from_s:
            self.leave(now, claim_from_s=self._claim_from_s)
        if self.role is Role.LEAVING:
            self.due_s = now

    def on_unanswered(self, now: float) -> None:
        """A Read went without an answer, or a Write that may have been done, or may yet be."""
        self._must_read, self.due_s = True, now + _RETRY_S

    def on_term(self, term: int, now: float) -> None:
        """A worker has seen this term. A leader of an older one is refused by it, and so has to leave; if it
        held the lease all the same, the store has lost terms, and its next one is higher."""
        if term > self._latest_term:
            return
        self._highest_term = max(self._highest_term, term)
        if self.role is Role.LEADER and term > self.term:
            self.leave(now)

    def want(self, is_wanted: bool) -> None:
        """Say whether this process is to lead rather than others: if not, it leaves them the time of another
        lease before it claims one that is free, or stands unchanged."""
        self._is_wanted = is_wanted

    def leave(self, now: float, *, claim_from_s: float = 0.0) -> None:
        """Stop leading at once, and tell the others. Nothing is claimed from here before `claim_from_s`."""
        self._claim_from_s = claim_from_s
        if self.role is Role.LEADER:
            self.role, self.due_s = Role.LEAVING, now

    def _look(self, record: LeaseRecord | None, revision: int, now: float) -> None:
        """Claim the lease as a standby, or look again later."""
        is_first = self._seen is None
        if self._seen is None or (self._seen.record, self._seen.revision) != (record, revision):
            self.has_seen_leader |= not is_first and record is not None
            self._seen = _Seen(record, revision, now)
        if now >= self._claim_from_s and self._may_claim(self._seen, now, is_first=is_first):
            self._write_over(revision, now)
        else:
            self._must_read, self.due_s = True, now + self.times.poll_s

    def _may_claim(self, seen: _Seen, now: float, *, is_first: bool) -> bool:
        age_s = now - seen.since_s
        # Also where the owner of the partition is not known yet: the process that led is gone.
        own_name = is_first and seen.record is not None and seen.record.holder == self._own.holder
        if not self._is_wanted:
            return own_name or age_s >= 2 * self.times.duration_s
        if seen.record is None:
            is_free = is_first
        else:
            is_free = not seen.record.holder or own_name or seen.record.incarnation == self._own.incarnation
        return is_free or age_s >= self.times.duration_s

    def _write_over(self, revision: int, now: float) -> None:
        self._revision = revision
        self._must_read, self.due_s = False, now

    def _stand_by(self, record: LeaseRecord, revision: int, now: float) -> None:
        self.role = Role.STANDBY
        self.has_seen_leader = True
        self._seen = _Seen(record, revision, now)
        self._must_read, self.due_s = True, now

    def _is_own(self, record: LeaseRecord) -> bool:
        return (record.incarnation, record.term) == (self._own.incarnation, self._own.term)
