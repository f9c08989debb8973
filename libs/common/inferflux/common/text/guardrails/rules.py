"""Rules of a set of guardrails, and the check of what an administrator sets (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferflux.common.contract.checks import check_range
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import guardrails_pb2

from .lookalikes import LookAlikes
from .normal import folded

MAX_ENTRIES = 25_000
MAX_ENTRY_CHARACTERS = 256
MAX_PATTERNS = 64
MAX_PATTERN_CHARACTERS = 1000
MAX_BYTES = 1 << 20
MAX_WINDOW = 1024
DEFAULT_WINDOW = 128
_MOST = 2**31 - 1
_LOOK_ALIKES = {
    guardrails_pb2.LOOK_ALIKES_UNSPECIFIED: LookAlikes.MIXED,
    guardrails_pb2.LOOK_ALIKES_MIXED: LookAlikes.MIXED,
    guardrails_pb2.LOOK_ALIKES_ANY: LookAlikes.ANY,
    guardrails_pb2.LOOK_ALIKES_NONE: LookAlikes.NONE,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A text that is blocked.

    Attributes:
        text: as it was given.
        is_word: whether it is found only where it is no part of a longer word.
    """

    text: str
    is_word: bool = False


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules of one set of guardrails.

    Attributes:
        blocked: texts, in any case and in any of Unicode's spellings.
        patterns: regular expressions, in RE2's syntax.
        max_characters: of a prompt; 0 for any number, as is the next.
        max_tokens: of a prompt.
        guards_stream: whether `blocked` and `patterns` hold for answers too.
        window: of answers: characters of the longest match of a pattern that is found whole.
        look_alikes: where letters that only look like those of a blocked text count as these.
        ignores_accents: whether a letter with marks is the same as without, in blocked texts.
    """

    blocked: Sequence[Entry] = ()
    patterns: Sequence[str] = ()
    max_characters: int = 0
    max_tokens: int = 0
    guards_stream: bool = False
    window: int = DEFAULT_WINDOW
    look_alikes: LookAlikes = LookAlikes.MIXED
    ignores_accents: bool = False

    @property
    def has_texts(self) -> bool:
        return bool(self.blocked or self.patterns)

    @property
    def needs_text(self) -> bool:
        """True if a prompt's text is needed, and not just its tokens."""
        return self.has_texts or self.max_characters > 0


def parse_rules(message: guardrails_pb2.GuardrailRules, field: str = "rules") -> RuleSet:
    """The rules of a message.

    Raises:
        InvalidArgument: one cannot be used, or there is none; names its field. Patterns are compiled
            elsewhere.
    """
    check_range(len(message.blocked), 0, MAX_ENTRIES, f"{field}.blocked")
    check_range(len(message.patterns), 0, MAX_PATTERNS, f"{field}.patterns")
    check_range(message.max_characters, 0, _MOST, f"{field}.max_characters")
    check_range(message.max_tokens, 0, _MOST, f"{field}.max_tokens")
    check_range(message.stream_window, 0, MAX_WINDOW, f"{field}.stream_window")
    if message.ByteSize() > MAX_BYTES:
        raise InvalidArgument(f"the rules have more than {MAX_BYTES} bytes", field=field)
    for i, blocked in enumerate(message.blocked):
        _check_entry(blocked.text, f"{field}.blocked[{i}].text")
    for i, pattern in enumerate(message.patterns):
        if not 1 <= len(pattern) <= MAX_PATTERN_CHARACTERS:
            what = f"a pattern has 1 to {MAX_PATTERN_CHARACTERS} characters"
            raise InvalidArgument(what, field=f"{field}.patterns[{i}]")
    if message.look_alikes not in _LOOK_ALIKES:
        raise InvalidArgument("this is none of mixed, any and none", field=f"{field}.look_alikes")
    rules = RuleSet(
        blocked=tuple(Entry(each.text, each.is_word) for each in message.blocked),
        patterns=tuple(message.patterns),
        max_characters=message.max_characters,
        max_tokens=message.max_tokens,
        guards_stream=message.guards_stream,
        window=message.stream_window or DEFAULT_WINDOW,
        look_alikes=_LOOK_ALIKES[message.look_alikes],
        ignores_accents=message.ignores_accents,
    )
    if not (rules.needs_text or rules.max_tokens):
        raise InvalidArgument("there is no rule: give blocked texts, patterns or a size", field=field)
    if rules.guards_stream and not rules.has_texts:
        what = "there is no blocked text and no pattern to hold answers to"
        raise InvalidArgument(what, field=f"{field}.guards_stream")
    return rules


def _check_entry(text: str, field: str) -> None:
    if not 1 <= len(folded(text)) <= MAX_ENTRY_CHARACTERS:
        what = f"a blocked text has 1 to {MAX_ENTRY_CHARACTERS} characters that can be seen"
        raise InvalidArgument(what, field=field)
