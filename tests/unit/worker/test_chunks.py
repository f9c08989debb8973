"""The chunks that readers get of a sequence say what it has computed, found and sampled."""

from __future__ import annotations

import numpy as np
import pytest
from harness.sequences import new_sequence

from inferflux.common.contract.errors import Internal, InvalidArgument
from inferflux.v1 import generation_pb2, tokens_pb2
from inferflux.worker.engine.plan.acceptance import Accepted
from inferflux.worker.engine.plan.facets import Origin
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import NGRAM, Drafts
from inferflux.worker.engine.sampling.logprobs import Logprobs
from inferflux.worker.engine.step import chunks
from inferflux.worker.engine.step.shell import fail
from inferflux.worker.engine.tiers.rates import Tier


def sequence_of_five() -> Sequence:
    """One with a prompt of three tokens, and two more."""
    made = new_sequence(0, np.arange(13, dtype=np.int32), prompt_tokens=3)
    made.generated, made.times.queue_ms, made.times.started_s = 2, 7.0, 10.0
    return made


def test_a_chunk_without_tokens_is_of_the_next_one() -> None:
    assert chunks.empty(sequence_of_five()) == tokens_pb2.TokenChunk(offset=2)
    assert chunks.empty(sequence_of_five(), 1) == tokens_pb2.TokenChunk(offset=1)


@pytest.mark.parametrize(
    ("found", "tier", "told"),
    [
        (2, None, (2, generation_pb2.CACHE_TIER_DEVICE)),
        (2, Tier.HOST, (2, generation_pb2.CACHE_TIER_HOST)),
        (5, Tier.DISK, (3, generation_pb2.CACHE_TIER_DISK)),
        (0, None, (0, generation_pb2.CACHE_TIER_UNSPECIFIED)),
    ],
)
def test_what_was_found_of_a_prompt_is_told_with_its_place(
    found: int, tier: Tier | None, told: tuple[int, generation_pb2.CacheTier.ValueType]
) -> None:
    sequence = sequence_of_five()
    sequence.begin_at(found, tier)
    sequence.origin = Origin("r0", attempt_id="a1")
    first = chunks.announce(sequence, chunks.empty(sequence), "w-1")
    assert first.attempt_id == "a1"
    started = first.started
    assert (started.worker_id, started.cached_prompt_tokens, started.cached_prompt_tier) == ("w-1", *told)
    assert sequence.times.is_announced
    chunk = chunks.empty(sequence)
    chunks.finish(sequence, chunk, generation_pb2.FINISH_REASON_STOP, 10.0)
    usage = chunk.finished.usage
    assert (usage.cached_prompt_tokens, usage.cached_prompt_tier) == told
    ended = chunks.ended(sequence, "stop")
    assert (ended.cached_prompt_tokens, ended.cached_prompt_tier) == told


def test_a_place_is_not_told_of_what_was_lost_again() -> None:
    sequence = sequence_of_five()
    sequence.begin_at(2, Tier.DISK)
    sequence.discard()
    started = chunks.announce(sequence, chunks.empty(sequence), "w-1").started
    assert (started.cached_prompt_tokens, started.cached_prompt_tier) == (0, 0)
    sequence.begin_at(1)
    assert sequence.cached_prompt_tier == generation_pb2.CACHE_TIER_DEVICE


class Pieces:
    def piece(self, token: int) -> bytes:
        return self.piece_text(token).encode()

    def piece_text(self, token: int) -> str:
        return f"<{token}>"

    def text(self, token: int) -> str:
        return self.piece_text(token)


def test_each_token_has_its_own_logprobs() -> None:
    chunk = chunks.empty(sequence_of_five(), 2)
    accepted = Accepted([8, 9], "ab", None, is_timeslice_over=False)
    logprobs = [Logprobs(-0.5, [(8, -0.5), (1, -2.0)]), Logprobs(-1.0, [])]
    chunks.add_tokens(chunk, accepted, logprobs, 123, Pieces())
    assert (list(chunk.token_ids), chunk.text, chunk.sampled_unix_us) == ([8, 9], "ab", 123)
    first, second = chunk.logprobs
    assert (first.chosen.token_id, first.chosen.text, first.chosen.logprob) == (8, "<8>", -0.5)
    assert [(one.token_id, one.text, one.logprob) for one in first.top] == [
        (8, "<8>", -0.5),
        (1, "<1>", -2.0),
    ]
    assert (second.chosen.token_id, list(second.top)) == (9, [])


def test_a_finished_chunk_divides_the_time_at_the_first_token() -> None:
    sequence = sequence_of_five()
    sequence.times.first_token_s = 10.25
    sequence.drafts = Drafts(NGRAM)
    sequence.drafts.drafted, sequence.drafts.accepted = 9, 6
    chunk = chunks.empty(sequence)
    assert chunks.finish(sequence, chunk, generation_pb2.FINISH_REASON_LENGTH, 10.75) == "length"
    timings = chunk.finished.timings
    assert (timings.queue_ms, timings.prefill_ms, timings.decode_ms) == (7.0, 250.0, 500.0)
    assert (timings.draft_n, timings.draft_n_accepted) == (9, 6)
    assert (chunk.finished.usage.prompt_tokens, chunk.finished.usage.completion_tokens) == (3, 2)


def test_without_a_token_all_the_time_went_into_the_prompt() -> None:
    chunk = chunks.empty(sequence_of_five())
    outcome = chunks.finish(sequence_of_five(), chunk, generation_pb2.FINISH_REASON_CANCELLED, 10.5)
    assert (outcome, chunk.finished.timings.prefill_ms, chunk.finished.timings.decode_ms) == (
        "cancelled",
        500.0,
        0.0,
    )


def test_the_first_and_the_last_chunk_have_the_format_of_the_answer() -> None:
    for form in (generation_pb2.AnswerFormat(reasoning=generation_pb2.REASONING_FORMAT_OPEN), None):
        sequence = sequence_of_five()
        sequence.answer.form = form
        first = chunks.announce(sequence, chunks.empty(sequence), "w-1")
        last = chunks.empty(sequence)
        chunks.finish(sequence, last, generation_pb2.FINISH_REASON_STOP, 10.0)
        chunks.close(sequence, last)
        for chunk in (first, last):
            assert chunk.HasField("answer_format") is (form is not None)
            assert form is None or chunk.answer_format == form


def test_a_failed_chunk_says_why() -> None:
    chunk = chunks.empty(sequence_of_five())
    bad_logits = Internal("the model gave no finite logits", reason="BAD_LOGITS")
    assert fail(chunk, bad_logits) == "bad_logits"
    assert (chunk.failed.code, chunk.failed.reason) == (13, "BAD_LOGITS")
    assert chunk.failed.message == "the model gave no finite logits"


def test_a_failed_chunk_names_the_field_that_is_at_fault() -> None:
    chunk = chunks.empty(sequence_of_five())
    fail(chunk, InvalidArgument("too much work", field="params.constraint.regex"))
    assert chunk.failed.field == "params.constraint.regex"
