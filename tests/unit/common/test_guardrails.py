"""What guardrails find in a text, however it is spelled."""

# ruff: noqa: RUF001 - letters that look like others are what this is about

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.text.guardrails.compiled import CompiledRules, Finding, Kind, check_all
from inferflux.common.text.guardrails.lookalikes import LookAlikes
from inferflux.common.text.guardrails.normal import MAX_UNIT, begins_unit, fold_plain, folded, plain, units
from inferflux.common.text.guardrails.rules import Entry, RuleSet, parse_rules
from inferflux.v1 import guardrails_pb2

# Letters that meet: marks, jamo, ligatures, fullwidth forms, characters that cannot be seen.
CHARACTERS = st.sampled_from(
    "aAbB .-_1é\u0301\u0327ﬁﬃＡ１ß\u0130Σςᾴ\u200b\u00ad\u2060가ᄀ\u1161\u11a8ｶﾞか\u3099\u0bc6\u0bbe𝐀🙂"
)
TEXTS = st.text(CHARACTERS, max_size=30)


def found_in(
    text: str, *blocked: str, is_word: bool = False, patterns: tuple[str, ...] = ()
) -> Finding | None:
    rules = RuleSet(blocked=tuple(Entry(each, is_word) for each in blocked), patterns=patterns)
    return CompiledRules(rules).check(text, 1)


@pytest.mark.parametrize(
    "text",
    [
        "forbidden",
        "it is FORBIDDEN here",
        "ｆｏｒｂｉｄｄｅｎ",
        "for\u200bbid\u00adden",
        "𝐟𝐨𝐫𝐛𝐢𝐝𝐝𝐞𝐧",
        "f\u2060o\ufe0fr\u034fb\U000e0041idden",
        "ⓕⓞⓡⓑⓘⓓⓓⓔⓝ",
        "unforbiddenly",
        "f\u0336o\u0336r\u0336b\u0336i\u0336d\u0336d\u0336e\u0336n\u0336",
        "f\u0316or\u034f\u035bbid\u20d2den",
        "for\u200d\u00ad\u0338bid\u180eden",
    ],
)
def test_a_blocked_text_is_found_in_any_spelling(text: str) -> None:
    assert found_in(text, "harmless", "Forbidden") == Finding(Kind.BLOCKED, 1)


@pytest.mark.parametrize(
    ("one", "other"), [("café", "cafe\u0301"), ("STRASSE", "straße"), ("각", "\u1100\u1161\u11a8")]
)
def test_a_blocked_text_is_found_composed_and_decomposed(one: str, other: str) -> None:
    assert found_in(f"a {other} b", one)
    assert found_in(f"a {one} b", other)


def test_what_is_only_alike_passes() -> None:
    assert found_in("cafe", "café") is None
    assert found_in("cafe\u0301s", "cafe") is None
    assert found_in("for bidden", "forbidden") is None
    assert found_in("\u1e1forbidden", "forbidden") is None  # an f with a dot is a letter
    assert found_in("f\u20ddorbidden", "forbidden") is None


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("ass", True),
        ("an ass.", True),
        ("class", False),
        ("assess", False),
        ("ass_", False),
        ("ass1", False),
        ("éass", False),
        ("assassin ass", True),
        ("a\u200bss", True),
        ("ass\u0301", False),
        ("x\u0323\u0323ass", False),
        ("क\u094dass", False),
    ],
)
def test_a_word_is_found_where_it_is_no_part_of_another(text: str, is_found: bool) -> None:
    assert (found_in(text, "ass", is_word=True) is not None) == is_found


@pytest.mark.parametrize("text", ["fоrbidden", "fοrbidden", "f0rbidden", "Fо\u0336rbidden"])
def test_a_pattern_finds_letters_that_look_alike(text: str) -> None:
    assert found_in(text, patterns=(r"(?i)f[oоο0]\pM*rbidden",))


def test_a_mark_of_a_script_is_not_left_out() -> None:
    assert found_in("\u0915\u093f", "\u0915") is not None  # within a word, as any text
    assert found_in("\u0915", "\u0915\u093f") is None
    assert found_in("\u0915", "\u0915\u0941") is None


def test_a_word_whose_edge_is_no_letter_needs_no_edge_there() -> None:
    assert found_in("a$$hole", "$$", is_word=True)
    assert found_in("c++17", "c++", is_word=True)
    assert found_in("xc++", "c++", is_word=True) is None


def test_the_first_that_ends_is_named_whichever_way_it_is_blocked() -> None:
    rules = RuleSet(blocked=(Entry("she", True), Entry("SHE"), Entry("hers")))
    assert CompiledRules(rules).check("ushers", 1) == Finding(Kind.BLOCKED, 1)
    assert CompiledRules(rules).check("hers", 1) == Finding(Kind.BLOCKED, 2)


def test_patterns_are_matched_without_what_cannot_be_seen_and_with_their_case() -> None:
    assert found_in("key AKIA\u200bＡＢＣＤ", patterns=("x", "AKIA[A-Z]{4}")) == Finding(Kind.PATTERN, 1)
    assert found_in("key akiaabcd", patterns=("AKIA[A-Z]{4}",)) is None
    assert found_in("key akiaabcd", patterns=("(?i)AKIA[A-Z]{4}",))


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_others_choke_on_takes_no_time(pattern: str) -> None:
    """With an engine that goes back these take years; the test's time limit holds it."""
    CompiledRules(RuleSet(patterns=(pattern,))).check("a" * 50_000 + "!", 1)


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "(a)\\1", "((a{100}){100}){100}", "a*", ".?", "^$"])
def test_what_cannot_be_a_pattern_is_refused_by_its_field(pattern: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        CompiledRules(RuleSet(patterns=("ok", pattern)))
    assert caught.value.field == "rules.patterns[1]"


def test_sizes_are_held_to() -> None:
    rules = CompiledRules(RuleSet(max_characters=5, max_tokens=2))
    assert rules.check("12345", 2) is None
    assert rules.check("123456", 2) == Finding(Kind.CHARACTERS, most=5)
    assert rules.check("12345", 3) == Finding(Kind.TOKENS, most=2)


def test_a_finding_is_named_by_its_set_and_its_place_there() -> None:
    sets = [
        CompiledRules(RuleSet(blocked=(Entry("a"),), max_tokens=1), "/demo"),
        CompiledRules(RuleSet(patterns=("x", "b+")), "acme/"),
    ]
    names = [found.name for text in ("b", "ab") if (found := check_all(sets, text, 1))]
    assert names == ["acme/ pattern[1]", "/demo blocked[0]"]
    tokens = check_all(sets, "c", 2)
    assert tokens is not None
    assert tokens.name == "/demo max_tokens"
    assert check_all(sets, "c", 1) is None


Message = guardrails_pb2.GuardrailRules


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message(blocked=[guardrails_pb2.BlockedText(text="")]), "rules.blocked[0].text"),
        (Message(blocked=[guardrails_pb2.BlockedText(text="\u200b\u00ad")]), "rules.blocked[0].text"),
        (Message(blocked=[guardrails_pb2.BlockedText(text="x" * 257)]), "rules.blocked[0].text"),
        (Message(patterns=["a", ""]), "rules.patterns[1]"),
        (Message(patterns=["a" * 1001]), "rules.patterns[0]"),
        (Message(patterns=["a"] * 65), "rules.patterns"),
        (Message(stream_window=1025), "rules.stream_window"),
        (Message(max_tokens=1, look_alikes=cast(Any, 7)), "rules.look_alikes"),
        (Message(max_tokens=2**31), "rules.max_tokens"),
        (Message(), "rules"),
        (Message(max_tokens=1, guards_stream=True), "rules.guards_stream"),
        (Message(blocked=[guardrails_pb2.BlockedText(text=f"{i:x>200}") for i in range(6000)]), "rules"),
        (
            Message(blocked=[guardrails_pb2.BlockedText(text=str(i)) for i in range(25_001)]),
            "rules.blocked",
        ),
    ],
)
def test_rules_that_cannot_be_used_are_refused_by_their_field(message: Message, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_rules(message)
    assert caught.value.field == field


def test_rules_are_read_as_they_were_set() -> None:
    message = Message(
        blocked=[guardrails_pb2.BlockedText(text="Foo", is_word=True)],
        patterns=["a+"],
        max_tokens=7,
        guards_stream=True,
    )
    read = RuleSet((Entry("Foo", True),), ("a+",), 0, 7, True, 128)
    assert parse_rules(message) == read
    message.look_alikes, message.ignores_accents = guardrails_pb2.LOOK_ALIKES_ANY, True
    assert parse_rules(message) == replace(read, look_alikes=LookAlikes.ANY, ignores_accents=True)


@given(TEXTS)
def test_the_forms_of_a_text_are_those_of_its_units(text: str) -> None:
    parts = units(text)
    assert "".join(parts) == text
    assert "".join(map(plain, parts)) == plain(text)
    assert "".join(map(folded, parts)) == folded(text) == fold_plain(plain(text))


@given(TEXTS, TEXTS)
def test_all_units_but_the_last_stay_when_a_text_goes_on(text: str, more: str) -> None:
    closed = units(text)[:-1]
    assert units(text + more)[: len(closed)] == closed


@pytest.mark.parametrize("mark", ["\u0301", "\u200d", "\U000e0041"])
def test_a_unit_is_bounded_however_many_marks_there_are(mark: str) -> None:
    parts = units("a" + mark * 1000)
    assert max(map(len, parts)) == MAX_UNIT
    assert "".join(parts) == "a" + mark * 1000


def test_marks_without_end_in_odd_order_take_little_time() -> None:
    """Python puts marks in order by an insertion sort: this took minutes, in which nothing else ran."""
    text = "\u0301\u0316" * 150_000
    rules = CompiledRules(RuleSet(blocked=(Entry("bad"),)))
    assert rules.check(text, 1) is None
    assert rules.check(text + "bad", 1) is not None


@given(
    st.text("ae\u0301\u0316\u0323\u1100\u1161\u11a8\u0130\ufb03\uff46 k\u212b", max_size=40),
    st.integers(1, 60),
)
def test_a_long_text_has_the_forms_of_its_parts(part: str, n: int) -> None:
    text = (part + " ") * (n * 20)
    assert plain(text) == plain(part + " ") * (n * 20)
    assert folded(text) == folded(part + " ") * (n * 20)


def test_any_number_of_characters_that_cannot_be_seen_hides_nothing() -> None:
    text = ("\u200b" * 200).join("forbidden")
    assert found_in(text, "forbidden")
    assert "".join(map(folded, units(text))) == "forbidden"


def test_a_characters_forms_begin_with_one_that_begins_a_unit_if_it_does() -> None:
    """For every character of Unicode; so forms of units never meet."""
    codes = (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    beginnings = (character for character in map(chr, codes) if begins_unit(character))
    forms = ((character, form(character)) for character in beginnings for form in (plain, folded))
    assert [hex(ord(character)) for character, form in forms if not begins_unit(form[0])] == []
