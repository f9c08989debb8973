"""What is counted and timed about a streamed answer."""

from __future__ import annotations

import pytest

from inferflux.cli.ask.answer import Answer
from inferflux.v1 import generation_pb2, tokens_pb2


def chunk(text: str, ids: list[int], offset: int = 0) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(request_id="r", text=text, token_ids=ids, offset=offset)


def finished_chunk() -> tokens_pb2.TokenChunk:
    tier = generation_pb2.CACHE_TIER_DEVICE
    usage = generation_pb2.Usage(
        prompt_tokens=7, cached_prompt_tokens=2, cached_prompt_tier=tier, completion_tokens=5
    )
    finished = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_LENGTH, usage=usage)
    return tokens_pb2.TokenChunk(request_id="r", finished=finished)


def test_the_time_to_first_token_ignores_events_without_tokens() -> None:
    answer = Answer(sent_at=10.0)
    answer.take(tokens_pb2.TokenChunk(queued=tokens_pb2.Queued(position=3)), 10.1)
    answer.take(tokens_pb2.TokenChunk(started=tokens_pb2.Started(worker_id="w")), 10.2)
    assert answer.ttft_s is None
    answer.take(chunk("a", [1]), 10.5)
    assert answer.ttft_s == pytest.approx(0.5)


def test_the_rate_counts_what_came_after_the_first_message() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(chunk("ab", [1, 2]), 1.0)
    answer.take(chunk("c", [3]), 1.5)
    answer.take(chunk("de", [4, 5]), 2.0)
    answer.take(finished_chunk(), 9.0)
    assert answer.tokens_per_s == pytest.approx(3.0)
    assert answer.text == "abcde"


def test_an_answer_of_one_message_has_no_rate() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(chunk("ab", [1, 2]), 1.0)
    assert answer.tokens_per_s is None
    assert "tokens/s" not in answer.summary()


def test_an_answer_from_the_cache_says_so() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(chunk("ab", [1, 2]), 1.0)
    answer.take(finished_chunk(), 1.0)
    assert "answer cache" not in answer.summary()
    cached = finished_chunk()
    cached.finished.usage.cached_completion_tokens = 5
    answer.take(cached, 1.0)
    assert "from the answer cache" in answer.summary()
    assert answer.as_dict()["cached_completion_tokens"] == 5


def test_the_summary_says_how_much_of_the_prompt_was_cached() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(finished_chunk(), 1.0)
    assert "2 of 7 prompt tokens cached ·" in answer.summary()
    restored = finished_chunk()
    restored.finished.usage.cached_prompt_tier = generation_pb2.CACHE_TIER_DISK
    answer.take(restored, 1.0)
    assert "2 of 7 prompt tokens cached (disk)" in answer.summary()
    cold = finished_chunk()
    cold.finished.usage.cached_prompt_tokens = 0
    answer.take(cold, 1.0)
    assert "cached" not in answer.summary()


def test_the_summary_says_that_nothing_was_drafted_where_drafts_were_asked_for() -> None:
    for asks in (True, False):
        answer = Answer(sent_at=0.0, asks_for_drafts=asks)
        answer.take(finished_chunk(), 1.0)
        assert ("nothing drafted" in answer.summary()) is asks


def test_an_answer_that_is_not_whole_says_why() -> None:
    for reason, why in (
        (generation_pb2.FINISH_REASON_STOP, ""),
        (generation_pb2.FINISH_REASON_LENGTH, "--max-tokens"),
        (generation_pb2.FINISH_REASON_CONTENT_FILTER, "guardrails"),
        (generation_pb2.FINISH_REASON_SCHEMA_MISMATCH, "does not match its schema: 3 is twice"),
    ):
        answer = Answer(sent_at=0.0)
        mismatch = "3 is twice" if reason == generation_pb2.FINISH_REASON_SCHEMA_MISMATCH else ""
        finished = tokens_pb2.Finished(reason=reason, mismatch=mismatch)
        answer.take(tokens_pb2.TokenChunk(finished=finished), 1.0)
        assert why in answer.cut
        assert answer.as_dict().get("mismatch", "") == mismatch
        assert bool(answer.cut) is bool(why)


@pytest.mark.parametrize(
    ("max_tokens", "reached"),
    [
        (2, "--max-tokens (0: no limit)"),
        (3, "the end of the model's context"),
        (0, "the end of the model's context"),
        (None, "--max-tokens (0: no limit), or the end of the model's context"),
    ],
)
def test_an_answer_that_is_cut_names_the_limit_it_reached(max_tokens: int | None, reached: str) -> None:
    answer = Answer(sent_at=0.0, max_tokens=max_tokens)
    answer.take(chunk("ab", [1, 2]), 1.0)
    answer.take(finished_chunk(), 1.0)
    assert answer.cut == f"the answer is cut after 2 tokens: it reached {reached}"


def test_the_summary_says_how_many_drafted_tokens_were_accepted() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(finished_chunk(), 1.0)
    assert "draft" not in answer.summary()
    assert "draft_n" not in answer.as_dict()
    drafted = finished_chunk()
    drafted.finished.timings.draft_n, drafted.finished.timings.draft_n_accepted = 9, 6
    answer.take(drafted, 1.0)
    assert "6 of 9 drafted tokens accepted" in answer.summary()
    assert (answer.as_dict()["draft_n"], answer.as_dict()["draft_n_accepted"]) == (9, 6)


def test_json_holds_usage_and_the_reason_it_ended() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(chunk("hé", [1]), 0.25)
    answer.take(finished_chunk(), 0.5)
    assert answer.as_dict() == {
        "request_id": "r",
        "text": "hé",
        "finish_reason": "length",
        "prompt_tokens": 7,
        "cached_prompt_tokens": 2,
        "cached_prompt_tier": "device",
        "completion_tokens": 5,
        "cached_completion_tokens": 0,
        "ttft_ms": 250.0,
        "tokens_per_s": None,
    }


def test_the_summary_is_one_line_for_people() -> None:
    answer = Answer(sent_at=0.0)
    answer.take(chunk("a", [1]), 0.035)
    answer.take(chunk("b", [2]), 0.045)
    answer.take(finished_chunk(), 0.05)
    assert answer.summary() == (
        "2 tokens · first after 35 ms · 100 tokens/s · 2 of 7 prompt tokens cached · length · r"
    )
