"""Blocked texts are found by how they look, and words of other scripts are no blocked texts."""

# ruff: noqa: RUF001 - letters that look like others are what this is about

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.text.guardrails import lookalikes
from inferflux.common.text.guardrails.compiled import CompiledRules, Kind
from inferflux.common.text.guardrails.lookalikes import LEAST_MIXED, LookAlikes, Reader, is_mixed
from inferflux.common.text.guardrails.normal import folded
from inferflux.common.text.guardrails.rules import Entry, RuleSet
from inferflux.common.text.guardrails.stream import StreamGuard

# By name, as they cannot be told from Latin ones here.
CYRILLIC = {letter: unicodedata.lookup(f"CYRILLIC SMALL LETTER {name}") for letter, name in zip(
    "aceiopsxy", ("A", "ES", "IE", "BYELORUSSIAN-UKRAINIAN I", "O", "ER", "DZE", "HA", "U"), strict=True
)}  # fmt: skip
# Short and common words, most of which words of other scripts look like.
WORDS = (
    "cop", "hop", "pop", "pope", "cope", "scope", "hope", "coco", "poco", "xaxa", "core", "rope",
    "copy", "axe", "opa", "ecco", "caca", "mama", "papa", "coca", "cocaine", "paypal", "sikis", "sik",
    "pis", "nazi", "sos", "yxo", "kot", "pot", "ho", "ox", "pgh", "mm", "ohm", "oui", "cero", "nov",
    "tov", "von", "nun", "ass", "oops", "boob",
)  # fmt: skip
INNOCENT = (
    "Вынеси сор из избы, а хор споёт про Осу и коров. Море, роса, сера, рок, кот, рот, вор, нос, ухо.",
    "Сос, ох, ах, хаха, коко, роре: так говорят вороны. Соре, соса, еххо.",
    "Він має око, сир і сіль; коси й оси, їхня хата, рух і сором.",
    "Овај сат, хор и роса. Џеп, ѕвезда, јасно, њено.",
    "Το νερό και ο ουρανός, το χωριό, νους, όχι, τον κόπο, τα παπούτσια, νον, χορός, ρόπα",
    "Օրոր, սոսո, հոգ, նոր օր, ուս, ոսոս",
    "Sık sık gülüyor, sıkı bir iş; pış pış, nazı çok, kıs kıs",
    "سلام، هذا هو الماء ١٢٣ و ٥٥٥",
    "שלום, זה סוס ואוסוס",
    "ひらがなとカタカナと漢字の〇と二〇二六年",
    "नमस्ते ००७, ทดสอบ ๐๐, ௦௦",
    "Δp = ρgh, 5 μm, σx, νt, αβ, kΩ, ∪∨∣, μs/mm",
    "modern 0010 l1l1 cl rn vv: rnodern",
    "CD-диск, SMS-ка, USB-порт, веб-hook, ITшник",
)  # fmt: skip


def rules(*blocked: str, look_alikes: LookAlikes = LookAlikes.MIXED, accents: bool = False) -> CompiledRules:
    entries = tuple(Entry(each) for each in blocked)
    return CompiledRules(RuleSet(blocked=entries, look_alikes=look_alikes, ignores_accents=accents))


def test_one_letter_that_only_looks_alike_does_not_hide_a_text() -> None:
    compiled = rules("forbidden", "cocaine")
    for letter, other in CYRILLIC.items():
        for word in ("forbidden", "cocaine", "COCAINE"):
            for place in (i for i, own in enumerate(word) if own.lower() == letter):
                text = word[:place] + (other.upper() if word.isupper() else other) + word[place + 1 :]
                found = compiled.check(f"some {text}s here", 1)
                assert found is not None, text
                assert found.kind is Kind.BLOCKED


@pytest.mark.parametrize(
    "text",
    [
        "FΟRΒΙDDΕΝ",  # Greek capitals, of which one is no look-alike when it is small
        "fοrbiddeո",  # Greek and Armenian
        "ꓝꓳꓣbidden",  # Lisu
        "fо\u0336r\u200bbіdden",
        "fόrbidden",  # an accent on a letter of another script
        "f٥rbidden",
        "ｆоrbidden",
        "forbiԁԁen",
    ],
)
def test_letters_of_any_script_are_found_by_their_looks(text: str) -> None:
    assert rules("forbidden").check(f"a {text}.", 1) is not None
    guard = StreamGuard([rules("forbidden")])
    passed = [guard.push(character) for character in f"a {text} thing"]
    assert "".join(each.text for each in passed) == "a "
    assert rules("forbidden", look_alikes=LookAlikes.NONE).check(f"a {text}.", 1) is None


def test_every_character_of_unicodes_list_is_found_in_a_word() -> None:
    missed = [
        (character, letter)
        for character, letter in lookalikes._confusables()
        if len(folded(character)) == 1
        and not folded(character).isascii()
        and rules(f"quiz{letter}zing").check(f"quiz{character}zing", 1) is None
    ]
    # A dotless i is a letter of its own. What looks like a capital I and so like an l too is taken for an i.
    assert {letter for _, letter in missed} == {"i", "l"}
    assert {folded(character) for character, letter in missed if letter == "i"} == {"\u0131"}
    assert all(folded(character) in "\u0269ιⲓіӏ" for character, letter in missed if letter == "l")


def test_a_blocked_text_of_another_script_is_found_with_letters_of_ascii() -> None:
    compiled = rules("запрет")
    assert compiled.check("зaпpeт", 1) is not None
    assert compiled.check("запрет", 1) is not None


@pytest.mark.parametrize("text", INNOCENT)
@pytest.mark.parametrize("accents", [False, True])
def test_words_of_other_scripts_are_no_blocked_texts(text: str, accents: bool) -> None:
    exact = rules(*WORDS, look_alikes=LookAlikes.NONE, accents=accents)
    for word in text.split():
        if exact.check(word, 1) is None:
            assert rules(*WORDS, accents=accents).check(word, 1) is None, word
    if exact.check(text, 1) is None:
        assert rules(*WORDS, accents=accents).check(text, 1) is None


LETTERS = ("abcehiklmnoprstuvxyı", "авсенікмпоруткхѕј", "αβεηικμνορτυχσΝΥ")


@given(
    st.lists(st.one_of([st.text(letters, min_size=1, max_size=8) for letters in LETTERS])),
    st.lists(st.text("abcehiklmnoprstuvxy", min_size=1, max_size=5), min_size=1, max_size=8),
)
def test_a_text_whose_words_are_each_of_one_script_is_found_only_as_it_is(
    parts: list[str], blocked: list[str]
) -> None:
    text = " ".join(parts)
    exact = rules(*blocked, look_alikes=LookAlikes.NONE).check(text, 1)
    assert rules(*blocked).check(text, 1) == exact


def test_a_short_text_is_found_only_as_it_is() -> None:
    assert LEAST_MIXED == 4
    assert rules("pgh").check("ρgh", 1) is None
    assert rules("pghi").check("ρghi", 1) is not None


def test_words_of_another_script_count_where_that_is_asked_for() -> None:
    whole = "".join(CYRILLIC[letter] for letter in "scope")
    assert rules("scope").check(whole, 1) is None
    assert rules("scope", look_alikes=LookAlikes.ANY).check(whole, 1) is not None
    assert rules("sik", look_alikes=LookAlikes.ANY).check("sık", 1) is not None


@pytest.mark.parametrize(
    ("blocked", "text"), [("cafe", "café"), ("café", "CAFE"), ("forbidden", "ḟo̧rbíddeṅ"), ("άνω", "ανω")]
)
def test_accents_are_ignored_where_that_is_asked_for(blocked: str, text: str) -> None:
    for look_alikes in LookAlikes:
        assert rules(blocked, look_alikes=look_alikes, accents=True).check(text, 1) is not None
    assert rules(blocked).check(text, 1) is None


def test_a_letter_with_an_accent_that_looks_alike_as_well_is_found() -> None:
    text = f"f{CYRILLIC['o']}rbídden"
    assert rules("forbidden", accents=True).check(text, 1) is not None
    assert rules("forbidden").check(text, 1) is None


@pytest.mark.parametrize(
    ("text", "mixes"),
    [
        ("word", False),
        ("слово word", False),
        ("wоrd", True),
        ("l10n_ok", False),
        (
            "二〇",
            True,
        ),  # a digit zero that is no letter of Han by its name; nothing but a finding is asked about
        ("v०lt", True),
        ("don\u02bct", False),
    ],
)
def test_a_word_mixes_scripts_where_its_letters_are_of_several(text: str, mixes: bool) -> None:
    assert is_mixed(text) == mixes


@given(st.text("aо\u0301éνΝß1 ", max_size=20), st.sampled_from(LookAlikes), st.booleans())
def test_readings_have_the_places_of_the_text(text: str, look_alikes: LookAlikes, accents: bool) -> None:
    seen = folded(text)
    for reading in Reader(look_alikes, ignores_accents=accents).readings(seen):
        assert len(reading) == len(seen)
        assert all(own == other for own, other in zip(seen, reading, strict=True) if own.isascii())
