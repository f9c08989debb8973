"""The limiter as one would write it without any thought of cost: every event is kept, and counted anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MINUTE, DAY = (1000, 60), (86_400_000, 0)
# name -> what it counts, and the width of a bucket in ms and how many of them beside the present one count.
WINDOWS = {
    "requests_per_minute": ("requests", MINUTE),
    "tokens_per_minute": ("tokens", MINUTE),
    "requests_per_day": ("requests", DAY),
    "tokens_per_day": ("tokens", DAY),
}


@dataclass
class Event:
    subject: str
    name: str
    at_ms: int
    amount: int

    def leaves_at_ms(self) -> int:
        width, buckets = WINDOWS[self.name][1]
        return (self.at_ms // width + buckets + 1) * width

    @property
    def is_tokens(self) -> bool:
        return WINDOWS[self.name][0] == "tokens"


@dataclass
class Held:
    subjects: list[str]
    events: list[Event]
    until_ms: int
    used: int = 0


@dataclass
class NaiveLimiter:
    """Refusals are the wait in ms, -1 where it would be for ever; None is none."""

    lease_ms: int
    rules: dict[str, dict[str, int]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    swept_ms: int | None = None

    def used(self, subject: str, name: str, now: int) -> int:
        return sum(e.amount for e in self._counting(subject, name, now))

    def running(self, subject: str) -> int:
        return sum(subject in held.subjects for held in self.held.values())

    def admit(self, subjects: Sequence[str], now: int) -> int | None:
        asked = {"requests": 1, "tokens": 1}
        rules = self._rules_of(subjects)
        refused = self._check(rules, {subject: asked for subject, _ in rules}, now)
        if refused is None:
            self._add(rules, {subject: {"requests": 1} for subject, _ in rules}, now)
        return refused

    def reserve(self, job: str, subjects: Sequence[str], model: str, tokens: int, now: int) -> int | None:
        rules = self._rules_of(subjects)
        if job in self.held or not rules:
            return None
        asked = {s: {"tokens": tokens, "requests": int(s == model)} for s, _ in rules}
        refused = self._check(rules, asked, now)
        if refused is None:
            events = self._add(rules, asked, now)
            self.charged.pop(job, None)
            self.held[job] = Held([subject for subject, _ in rules], events, now + self.lease_ms)
        return refused

    def settle(self, job: str, subjects: Sequence[str], tokens: int, kind: str, now: int) -> None:
        if job in self.held:
            used = max(tokens, self.held[job].used)
            if kind == "partial":
                self.held[job].used = used
            else:
                self._release(job, 0 if kind == "void" else used, now, gives_requests_back=kind == "void")
            if kind == "final":
                self.charged[job] = used
        elif kind != "void" and (rules := self._rules_of(subjects)):
            before = self.charged.get(job, 0)
            self.charged[job] = max(before, tokens)
            self._add(rules, {s: {"tokens": max(0, tokens - before)} for s, _ in rules}, now)

    def renew(self, jobs: Iterable[str], now: int) -> None:
        for job in jobs:
            if job in self.held:
                self.held[job].until_ms = now + self.lease_ms

    def sweep(self, now: int) -> int:
        last, self.swept_ms = self.swept_ms, now
        if last is None or now - last > self.lease_ms / 2:
            self.renew(self.held, now)
            return 0
        expired = [job for job, held in self.held.items() if held.until_ms <= now]
        for job in expired:
            if used := self.held[job].used:
                self.charged[job] = used
            self._release(job, used, now, gives_requests_back=False)
        return len(expired)

    def _release(self, job: str, tokens: int, now: int, *, gives_requests_back: bool) -> None:
        for event in self.held.pop(job).events:
            if event.is_tokens and event.amount < tokens:
                self.events.append(Event(event.subject, event.name, now, tokens - event.amount))
            elif event.is_tokens:
                event.amount = tokens
            elif gives_requests_back:
                event.amount = 0

    def _rules_of(self, subjects: Sequence[str]) -> list[tuple[str, Mapping[str, int]]]:
        found = [(s, self.rules.get(s, self.rules.get(f"{s.partition(':')[0]}:*", {}))) for s in subjects]
        return [(subject, limits) for subject, limits in found if limits]

    def _check(
        self,
        rules: Sequence[tuple[str, Mapping[str, int]]],
        asked: Mapping[str, Mapping[str, int]],
        now: int,
    ) -> int | None:
        waits: list[int] = []
        for subject, limits in rules:
            for name, most in limits.items():
                if name == "concurrent_requests":
                    waits += [1000] if self.running(subject) + 1 > most else []
                    continue
                n = asked[subject].get(WINDOWS[name][0], 0)
                if n and self.used(subject, name, now) + n > most:
                    waits.append(self._wait(subject, name, most - n, now))
        return None if not waits else -1 if -1 in waits else max(waits)

    def _wait(self, subject: str, name: str, most: int, now: int) -> int:
        if most < 0:
            return -1
        later = sorted(event.leaves_at_ms() for event in self._counting(subject, name, now))
        return next(at for at in later if self.used(subject, name, at) <= most) - now

    def _counting(self, subject: str, name: str, now: int) -> list[Event]:
        return [e for e in self.events if (e.subject, e.name) == (subject, name) and now < e.leaves_at_ms()]

    def _add(
        self,
        rules: Sequence[tuple[str, Mapping[str, int]]],
        amounts: Mapping[str, Mapping[str, int]],
        now: int,
    ) -> list[Event]:
        added = [
            Event(subject, name, now, n)
            for subject, limits in rules
            for name in limits
            if name in WINDOWS and (n := amounts[subject].get(WINDOWS[name][0], 0))
        ]
        self.events += added
        return added
