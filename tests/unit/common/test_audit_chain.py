"""Whatever is done to an audit trail without its key shows, and says where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.calls.audit.chain import (
    GENESIS,
    AuditKeys,
    BadLine,
    Head,
    head_bytes,
    is_sealed,
    read_head,
    read_line,
    seal,
    torn_note,
)
from inferflux.common.calls.audit.verify import OPENED, Problem, verify

KEYS = AuditKeys.of("a key of the tests' own")
OTHER = AuditKeys.of("another key of the tests")
AT = "2026-01-31T12:00:00.000+00:00"


def chain(
    n: int, head: Head | None = None, keys: AuditKeys = KEYS, **fields: object
) -> tuple[list[bytes], Head]:
    """Lines of a chain, and its head after them."""
    head = head or Head()
    lines = []
    for i in range(n):
        line, head = seal(
            head, {"at": AT, "event": "call", "text": f"line {i} \n\u2028", **fields}, keys.chain
        )
        lines.append(line)
    return lines, head


def problem_in(lines: list[bytes], anchor: Head | None = None) -> Problem | None:
    return verify([("a", lines)], [KEYS.chain], anchor).problem


def test_a_chain_as_it_was_written_is_good() -> None:
    lines, head = chain(20)
    found = verify([("a", lines[:7]), ("b", lines[7:])], [KEYS.chain], head)
    assert found.problem is None
    assert (found.first, found.head, found.n_lines) == (1, head, 20)
    assert found.is_anchored
    assert not found.is_torn


def test_a_line_is_one_line_of_json_with_all_of_its_fields() -> None:
    (line,), head = chain(1, text="a\nb\r\u2028 \ud800")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "seq": 1,
        "prev": GENESIS,
        "at": AT,
        "event": "call",
        "text": "a\nb\r\u2028 \ud800",
        "hash": head.hash,
    }
    assert read_line(line[:-1]).head == head


# What is done to a chain of n lines, each with where it then shows: the index of a line.
@st.composite
def tampered(draw: st.DrawFn) -> tuple[list[bytes], list[bytes], int]:
    """Lines as they were, lines as they are, and the index of the first that is wrong."""
    lines, _ = chain(draw(st.integers(3, 12)))
    at = draw(st.integers(0, len(lines) - 1))
    changed = list(lines)
    match draw(st.sampled_from(["edit", "remove", "swap", "repeat", "cut", "insert", "drop byte"])):
        case "edit":
            where = draw(st.integers(0, len(lines[at]) - 2))
            byte = draw(st.integers(0, 255).filter(lambda b: b not in (lines[at][where], 10)))
            changed[at] = lines[at][:where] + bytes([byte]) + lines[at][where + 1 :]
        case "remove":
            at = draw(st.integers(1, len(lines) - 2))  # what is gone at an end needs an anchor
            del changed[at]
        case "swap":
            other = draw(st.integers(0, len(lines) - 1).filter(lambda i: i != at))
            changed[at], changed[other] = lines[other], lines[at]
            at = min(at, other)
        case "repeat":
            changed.insert(at + 1, lines[at])
            at += 1
        case "cut":
            at = draw(st.integers(0, len(lines) - 2))
            changed[at] = lines[at][: draw(st.integers(0, len(lines[at]) - 2))] + b"\n"
        case "insert":
            forged, _ = seal(Head(at, "f" * 64), {"at": AT}, OTHER.chain)
            changed.insert(at, forged)
        case "drop byte":
            where = draw(st.integers(0, len(lines[at]) - 2))
            changed[at] = lines[at][:where] + lines[at][where + 1 :]
    return lines, changed, at


@given(tampered())
def test_whatever_is_changed_shows_at_the_first_line_that_is_wrong(
    case: tuple[list[bytes], list[bytes], int],
) -> None:
    lines, changed, at = case
    assert changed[at : at + 1] != lines[at : at + 1]
    problem = problem_in(changed)
    assert problem is not None
    # A chain may be checked from any line on: with another line in place of the first, the second is wrong.
    assert problem.line == at + 1 or (at == 0 and problem.line == 2)


@given(n=st.integers(1, 10), kept=st.integers(0, 10), cut=st.integers(0, 50))
def test_a_missing_end_shows_against_the_head(n: int, kept: int, cut: int) -> None:
    lines, head = chain(n)
    left = lines[: min(kept, n - 1)]
    torn = lines[len(left)][:cut]
    problem = problem_in([*left, torn] if torn else left, anchor=head)
    assert problem is not None
    assert problem.line == len(left) + 1
    # Without an anchor it does not show: the lines that are left are those of a shorter chain.
    assert problem_in(left) is None


def test_lines_beyond_the_head_are_good_as_they_are_written_before_it() -> None:
    lines, _ = chain(5)
    assert verify([("a", lines)], [KEYS.chain], read_line(lines[2][:-1]).head).is_anchored


def test_an_anchor_of_another_chain_shows() -> None:
    lines, _ = chain(5)
    _, elsewhere = chain(3, text="another")
    assert problem_in(lines, anchor=elsewhere) == Problem("a", 3, "the anchor names another line")


def test_files_may_be_checked_from_the_middle_of_a_chain_on() -> None:
    lines, head = chain(9)
    found = verify([("b", lines[4:])], [KEYS.chain], head)
    assert found.problem is None
    assert found.first == 5


def test_a_first_line_that_claims_to_be_in_the_middle_shows() -> None:
    line, _ = seal(Head(5, GENESIS), {"at": AT}, KEYS.chain)
    assert problem_in([line]) == Problem("a", 1, "it is no first line")


def test_a_last_line_without_its_end_is_torn_and_one_with_it_was_changed() -> None:
    lines, _ = chain(3)
    found = verify([("a", [*lines[:2], lines[2][:30]])], [KEYS.chain])
    assert (found.problem, found.is_torn) == (None, True)
    assert problem_in([*lines[:2], lines[2][:30] + b"\n"]) == Problem("a", 3, "it is incomplete")


def test_an_incomplete_line_is_good_if_the_next_process_accounts_for_it() -> None:
    lines, head = chain(3)
    torn = lines[2][:40]
    before = read_line(lines[1][:-1]).head
    opening, _ = seal(before, {"at": AT, "event": OPENED, "torn": torn_note(torn)}, KEYS.chain)
    found = verify([("a", [*lines[:2], torn + b"\n", opening])], [KEYS.chain])
    assert found.problem is None
    assert found.n_torn == 1
    # It cannot be edited further, nor removed.
    assert problem_in([*lines[:2], torn[:-1] + b"\n", opening]) == Problem("a", 3, "it is incomplete")
    gone = problem_in([*lines[:2], opening])
    assert gone == Problem("a", 3, "the incomplete line before it is gone")
    assert head.seq == 3


def test_a_process_may_begin_with_another_key_and_no_other_line_may() -> None:
    lines, head = chain(3)
    opening, _ = seal(head, {"at": AT, "event": OPENED}, OTHER.chain)
    more, _ = chain(2, read_line(opening[:-1]).head, OTHER)
    assert verify([("a", [*lines, opening, *more])], [OTHER.chain, KEYS.chain]).problem is None
    assert problem_in([*lines, opening, *more]) == Problem("a", 4, "it was changed, or is of another key")
    forged, _ = chain(1, head, OTHER)
    found = verify([("a", [*lines, *forged])], [OTHER.chain, KEYS.chain])
    assert found.problem is not None


def test_the_head_reads_back_and_no_other() -> None:
    _, head = chain(4)
    data = head_bytes(head, KEYS.chain)
    assert read_head(data, KEYS.chain) == head
    for changed in (b"", data[:-2], data.replace(b"4 ", b"3 "), head_bytes(head, OTHER.chain)):
        with pytest.raises(BadLine):
            read_head(changed, KEYS.chain)


@given(st.binary(max_size=400))
def test_any_bytes_are_no_line(data: bytes) -> None:
    assert not is_sealed(data, KEYS.chain)
    with pytest.raises(BadLine):
        read_line(data)


def test_the_keys_of_texts_and_chain_are_not_the_same() -> None:
    assert len({KEYS.chain, KEYS.texts, OTHER.chain, OTHER.texts}) == 4
    assert KEYS.key_id != OTHER.key_id
