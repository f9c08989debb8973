"""Public traces: what is read of them, and how they are replayed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.traces import mooncake
from benchmarks.traces.replay import hold, rate_of, replay
from benchmarks.traces.request import BLOCK_TOKENS, TraceError, TraceRequest, ideal

needs_trace = pytest.mark.skipif(
    not mooncake.CONVERSATION.exists(), reason=f"{mooncake.CONVERSATION} is not there: see ../shared/data"
)
GOOD = {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_a_line_is_a_request(tmp_path: Path) -> None:
    assert list(mooncake.read(written(tmp_path, GOOD, "\n", GOOD | {"output_length": 0}))) == [
        TraceRequest(3.0, 600, 7, (0, 5)),
        TraceRequest(3.0, 600, 1, (0, 5)),
    ]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", "no JSON"),
        ("[]\n", "object"),
        (GOOD | {"timestamp": -1}, "timestamp"),
        (GOOD | {"timestamp": 1.5}, "timestamp"),
        (GOOD | {"input_length": 0}, "input_length"),
        (GOOD | {"input_length": True}, "input_length"),
        (GOOD | {"input_length": 1 << 40}, "input_length"),
        (GOOD | {"output_length": None}, "output_length"),
        (GOOD | {"hash_ids": [0]}, "hash_ids"),
        (GOOD | {"hash_ids": [0, "1"]}, "hash_ids"),
        (GOOD | {"hash_ids": None}, "hash_ids"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: object, field: str) -> None:
    with pytest.raises(TraceError, match=rf"trace\.jsonl, line 2: .*{field}"):
        list(mooncake.read(written(tmp_path, GOOD, line)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="absent"):
        list(mooncake.read(tmp_path / "absent"))


def test_no_line_is_read_whole_that_is_longer_than_any_request(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: no JSON"):
        list(mooncake.read(written(tmp_path, '{"hash_ids": [' + "1," * (1 << 20))))


def test_equal_blocks_have_equal_tokens_and_others_have_not() -> None:
    one, other = TraceRequest(0.0, 600, 1, (3, 4)), TraceRequest(0.0, 1100, 1, (3, 5, 6))
    tokens, others = one.token_ids(49_152), other.token_ids(49_152)
    assert (len(tokens), len(others)) == (600, 1100)
    assert tokens[:BLOCK_TOKENS] == others[:BLOCK_TOKENS]
    assert tokens[BLOCK_TOKENS:600] != others[BLOCK_TOKENS:600]
    assert max(*tokens, *others) < 49_152
    assert tokens == one.token_ids(49_152)
    with pytest.raises(ValueError, match="which blocks"):
        TraceRequest(0.0, 600, 1).token_ids(100)


def test_the_ideal_counts_beginnings_that_came_before() -> None:
    found = ideal(
        [
            TraceRequest(0.0, 1000, 1, (1, 2)),
            TraceRequest(1.0, 1500, 1, (1, 3, 2)),  # 2 is no beginning here
            TraceRequest(2.0, 1000, 1, (1, 2)),
        ]
    )
    assert found.blocks == pytest.approx(3 / 7)
    assert found.tokens == pytest.approx((512 + 1000) / 3500)
    assert ideal([]).tokens == 0.0


def test_a_cache_of_few_tokens_has_lost_what_was_unused_for_longest() -> None:
    turns = [TraceRequest(0.0, 1024, 1, (n, n + 1)) for n in (0, 10, 0, 20, 30, 0)]
    assert ideal(turns).blocks == pytest.approx(4 / 12)
    assert ideal(turns, most_tokens=2048).blocks == pytest.approx(2 / 12)
    # Of a prompt, the end goes first.
    assert ideal(turns, most_tokens=1536).blocks == pytest.approx(1 / 12)


@needs_trace
def test_the_ideal_of_the_conversations_is_the_published_one() -> None:
    assert ideal(mooncake.read(mooncake.CONVERSATION)).blocks == pytest.approx(0.366, abs=0.0005)


@needs_trace
@pytest.mark.parametrize(("rate", "speed"), [(3.0, 1.0), (50.0, 4.0), (500.0, 4.0)])
def test_copies_have_the_rate_that_was_asked_for_and_share_nothing(rate: float, speed: float) -> None:
    trace = hold(mooncake.read(mooncake.CONVERSATION))
    seconds = 2000.0 / rate
    made = list(replay(trace, rate=rate, speed=speed, seconds=seconds))
    assert all(a.at_s <= b.at_s for a, b in pairwise(made))
    assert len(made) == pytest.approx(2000, rel=0.2)
    copies = {request.blocks[0] >> 32 for request in made}
    assert len(copies) == max(1, round(rate / (rate_of(trace) * speed)))
    assert made == list(replay(trace, rate=rate, speed=speed, seconds=seconds))


def test_a_trace_goes_on_with_its_beginning_as_another_copy() -> None:
    trace = [TraceRequest(float(at), 10, 1, (at,)) for at in range(10)]
    made = list(replay(trace, rate=rate_of(trace), speed=1.0, seconds=25.0))
    assert len(made) == pytest.approx(27, abs=2)
    assert len({request.blocks for request in made}) == len(made)
    gaps = [after.at_s - before.at_s for before, after in pairwise(made)]
    assert min(gaps) > 0.5


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(TraceError, match="empty"):
        hold([])
