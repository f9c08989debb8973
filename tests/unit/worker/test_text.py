"""Token bytes become whole characters, and a stop string never shows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.plan.text import TextAssembler


def pieces_of(text: str, cuts: list[int]) -> list[bytes]:
    raw = text.encode()
    edges = sorted({0, len(raw), *(c % (len(raw) + 1) for c in cuts)})
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


@given(st.text(), st.lists(st.integers(min_value=0, max_value=200)))
def test_without_stop_strings_the_text_comes_out_whole_however_it_is_cut(text: str, cuts: list[int]) -> None:
    assembler = TextAssembler()
    shown = [assembler.push(piece) for piece in pieces_of(text, cuts)]
    assert "".join(shown) + assembler.finish() == text
    assert all("�" not in part for part in shown) or "�" in text


@given(
    st.text(alphabet="abé", max_size=60),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(min_value=0, max_value=200)),
)
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    assembler = TextAssembler(stop)
    shown = ""
    consumed = b""
    for piece in pieces_of(text, cuts):
        shown += assembler.push(piece)
        consumed += piece
        if assembler.is_stopped:
            break
    shown += assembler.finish()
    seen = consumed.decode("utf-8", "ignore")
    first = min((at for s in stop if (at := seen.find(s)) >= 0), default=-1)
    assert shown == (seen[:first] if first >= 0 else text)
    assert assembler.is_stopped == (first >= 0)


def test_a_character_waits_for_its_last_byte() -> None:
    assembler = TextAssembler()
    euro = "€".encode()
    assert assembler.push(euro[:1]) == ""
    assert assembler.push(euro[1:2]) == ""
    assert assembler.push(euro[2:]) == "€"


def test_what_may_become_a_stop_string_is_held_and_then_released() -> None:
    assembler = TextAssembler(["END"])
    assert assembler.push(b"the EN") == "the "
    assert assembler.push(b"D") == ""
    assert assembler.stop == "END"
    other = TextAssembler(["END"])
    assert other.push(b"the EN") == "the "
    assert other.push(b"T") == "ENT"


def test_bytes_that_are_no_character_become_replacement_characters() -> None:
    assembler = TextAssembler()
    assert assembler.push(b"a\xffb") == "a�b"
    assert assembler.push("€".encode()[:2]) == ""
    assert assembler.finish() == "�"


@pytest.mark.parametrize("split_at", range(1, 12))
def test_a_replayed_assembler_goes_on_where_the_first_one_was(split_at: int) -> None:
    pieces = pieces_of("xySTOzSTOPw", list(range(12)))
    whole = TextAssembler(["STOP"])
    shown = [whole.push(p) for p in pieces]
    again = TextAssembler(["STOP"])
    for p in pieces[:split_at]:
        again.push(p)
    assert [again.push(p) for p in pieces[split_at:]][: 11 - split_at] == shown[split_at:]


@given(
    st.text(alphabet="abé€\ufffd", max_size=40),
    st.lists(st.text(alphabet="abé\ufffd", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(min_value=0, max_value=200)),
)
def test_what_is_held_is_what_the_end_would_release(text: str, stop: list[str], cuts: list[int]) -> None:
    pieces = pieces_of(text, cuts)
    for n in range(len(pieces) + 1):
        assembler = TextAssembler(stop)
        for piece in pieces[:n]:
            assembler.push(piece)
        held = assembler.held
        assert assembler.held == held  # asking changes nothing
        assert held == assembler.finish()
