"""A growing text: what is found does not depend on its pieces, and nothing of a finding is passed."""

# ruff: noqa: RUF001 - letters that look like others are what this is about

from __future__ import annotations

from itertools import pairwise

import pytest
from harness.profiles import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferflux.common.text.guardrails.compiled import CompiledRules, Finding, Kind, is_word
from inferflux.common.text.guardrails.lookalikes import LookAlikes
from inferflux.common.text.guardrails.normal import MAX_UNIT, folded, plain, units
from inferflux.common.text.guardrails.rules import Entry, RuleSet
from inferflux.common.text.guardrails.stream import BLOCK, StreamGuard

ALPHABET = st.sampled_from("aabbc  -1２é\u0301\u200bAＢﬁfасνΝ")  # the last four: Cyrillic and Greek
TEXTS = st.lists(ALPHABET, max_size=120).map("".join)
WORDS = st.text(st.sampled_from("abc 1éfсvn"), min_size=1, max_size=6).filter(lambda word: folded(word) != "")
PATTERNS = st.sampled_from(
    [
        "a+b",
        r"\d-\d",
        r"\bb\b",
        "^a",
        "c$",
        "ab{2,3}",
        "(?i)fi",
        "b .{3,9}c",
        r"c\b",
        "1[^1]*1",
        "(?m)^b",
        "é",
    ]
)
RULES = st.builds(
    lambda words, patterns, window, look_alikes, ignores_accents: RuleSet(
        blocked=tuple(Entry(word, is_whole) for word, is_whole in words),
        patterns=tuple(patterns),
        window=window,
        look_alikes=look_alikes,
        ignores_accents=ignores_accents,
    ),
    st.lists(st.tuples(WORDS, st.booleans()), max_size=4),
    st.lists(PATTERNS, max_size=2),
    st.integers(1, 40),
    st.sampled_from(LookAlikes),
    st.booleans(),
)


def run(compiled: CompiledRules, pieces: list[str]) -> tuple[str, Finding | None]:
    """All that is passed of a text in pieces, and what was found."""
    guard = StreamGuard([compiled])
    passed = ""
    for piece in pieces:
        now = guard.push(piece)
        passed += now.text
        if now.finding is not None:
            return passed, now.finding
    last = guard.finish()
    return passed + last.text, last.finding


def cut(text: str, at: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[i:j] for i, j in pairwise(places)]


def blocked_units(rules: RuleSet, text: str) -> list[int]:
    """The first unit of every place where a blocked text is, found one by one."""
    forms = [folded(unit) for unit in units(text)]
    whole = "".join(forms)
    owner = [i for i, form in enumerate(forms) for _ in form]
    starts = []
    for entry in rules.blocked:
        word = folded(entry.text)
        for i in range(len(whole) - len(word) + 1):
            if whole[i : i + len(word)] != word:
                continue
            before, after = whole[i - 1 : i] if i else "", whole[i + len(word) : i + len(word) + 1]
            goes_on = (before and is_word(before) and is_word(word[0])) or (
                after and is_word(after) and is_word(word[-1])
            )
            if not (entry.is_word and goes_on):
                starts.append(owner[i])
    return starts


@settings(max_examples=examples(400))
@given(rules=RULES, text=TEXTS, at=st.lists(st.integers(0, 200), max_size=40))
@example(RuleSet(blocked=(Entry("ab", True),)), "ab", [1])
@example(RuleSet(patterns=("a+b",), window=1), "a" * 40 + "b", [17])
def test_any_cutting_gives_the_same_verdict(rules: RuleSet, text: str, at: list[int]) -> None:
    compiled = CompiledRules(rules)
    whole = run(compiled, [text])
    assert run(compiled, cut(text, at)) == whole
    assert run(compiled, list(text)) == whole
    passed, finding = whole
    assert text.startswith(passed)
    assert (passed == text) or finding is not None


@settings(max_examples=examples(400))
@given(rules=RULES, text=TEXTS)
def test_no_character_of_a_blocked_text_is_passed(rules: RuleSet, text: str) -> None:
    passed, finding = run(CompiledRules(rules), list(text))
    starts = blocked_units(rules, text)
    assert len(units(passed)) <= min(starts, default=len(text))
    if starts:
        assert finding is not None
    elif rules.look_alikes is LookAlikes.NONE and not rules.ignores_accents:
        assert finding is None or finding.kind is Kind.PATTERN


@settings(max_examples=examples(400))
@given(rules=RULES, text=TEXTS)
def test_no_character_of_a_match_within_the_window_is_passed(rules: RuleSet, text: str) -> None:
    compiled = CompiledRules(rules)
    passed, finding = run(compiled, list(text))
    seen = plain(text)
    for pattern in compiled.patterns:
        for match in pattern.finditer(seen):
            if match.end() - match.start() <= rules.window:
                assert finding is not None
                assert len(plain(passed)) <= match.start()


@settings(max_examples=examples(400))
@given(rules=RULES, text=TEXTS, at=st.lists(st.integers(0, 200), max_size=40))
def test_blocked_texts_are_found_in_pieces_just_where_they_are_found_in_the_whole(
    rules: RuleSet, text: str, at: list[int]
) -> None:
    compiled = CompiledRules(RuleSet(blocked=rules.blocked))
    _, finding = run(compiled, cut(text, at))
    assert (finding is None) == (compiled.check(text, 1) is None)


@settings(max_examples=examples(400))
@given(rules=RULES, text=TEXTS, at=st.lists(st.integers(0, 200), max_size=40))
def test_patterns_are_found_in_pieces_just_where_they_are_found_in_a_text_within_the_window(
    rules: RuleSet, text: str, at: list[int]
) -> None:
    compiled = CompiledRules(RuleSet(patterns=rules.patterns, window=rules.window))
    _, finding = run(compiled, cut(text, at))
    whole = compiled.check(text, 1)
    if len(plain(text)) <= rules.window:
        assert (finding is None) == (whole is None)
    elif finding is not None:
        assert whole is not None


@settings(max_examples=examples(200))
@given(one=RULES, other=RULES, text=TEXTS, at=st.lists(st.integers(0, 200), max_size=40))
def test_several_sets_find_what_each_of_them_finds(
    one: RuleSet, other: RuleSet, text: str, at: list[int]
) -> None:
    sets = [CompiledRules(RuleSet(blocked=each.blocked), name) for each, name in ((one, "a"), (other, "b"))]
    guard = StreamGuard(sets)
    findings = [guard.push(piece).finding for piece in cut(text, at)] + [guard.finish().finding]
    found = [finding for finding in findings if finding is not None]
    assert len(found) <= 1
    assert bool(found) == any(each.check(text, 1) is not None for each in sets)


def test_marks_without_end_are_not_held_back_for_ever() -> None:
    guard = StreamGuard([CompiledRules(RuleSet(blocked=(Entry("no"),)))])
    passed = "".join(guard.push("\u200d\u0301").text for _ in range(500))
    assert len(passed) >= 1000 - 2 * MAX_UNIT


@given(text=TEXTS)
def test_a_text_in_which_nothing_is_blocked_passes_whole(text: str) -> None:
    rules = RuleSet(blocked=(Entry("zebra"), Entry("zoo", True)), patterns=("z+",))
    assert run(CompiledRules(rules), list(text)) == (text, None)


def test_no_more_is_held_back_than_a_blocked_text_could_need() -> None:
    guard = StreamGuard([CompiledRules(RuleSet(blocked=(Entry("secret word"),)))])
    assert guard.push("it is a ").text == "it is a"  # a mark could follow the last character
    assert guard.push("secret").text == " "
    assert guard.push(" wo").text == ""
    assert guard.push("rm in it").text == "secret worm in i"
    assert guard.finish().text == "t"


def test_what_is_held_back_for_patterns_is_bounded_by_the_window() -> None:
    rules = RuleSet(patterns=("never",), window=20)
    guard = StreamGuard([CompiledRules(rules)])
    passed = 0
    for n in range(1, 500):
        passed += len(guard.push("x").text)
        assert n - passed <= rules.window + BLOCK + 1


def test_after_a_finding_nothing_more_is_passed() -> None:
    guard = StreamGuard([CompiledRules(RuleSet(blocked=(Entry("no"),)))])
    found = guard.push("yes no maybe")
    assert (found.text, found.finding) == ("yes ", Finding(Kind.BLOCKED, 0))
    assert guard.push("more").text == guard.finish().text == ""


@pytest.mark.parametrize("pieces", [["the cla", "ss"], ["the class"], list("the class")])
def test_a_word_that_goes_on_in_the_next_piece_is_none(pieces: list[str]) -> None:
    compiled = CompiledRules(RuleSet(blocked=(Entry("cla", True),)))
    assert run(compiled, pieces) == ("the class", None)


def test_a_mark_in_the_next_piece_makes_another_letter() -> None:
    compiled = CompiledRules(RuleSet(blocked=(Entry("e"),)))
    assert run(compiled, ["caf", "e", "\u0301 is open"]) == ("cafe\u0301 is op", Finding(Kind.BLOCKED, 0))
    assert run(CompiledRules(RuleSet(blocked=(Entry("é"),))), ["caf", "e", "\u0301"])[0] == "caf"
