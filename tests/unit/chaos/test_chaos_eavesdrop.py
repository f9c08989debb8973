"""What token subjects must not say, whoever reads them."""

from __future__ import annotations

import pytest
from chaos.eavesdrop import Overheard

from inferflux.v1 import generation_pb2, tokens_pb2


@pytest.fixture
def overheard() -> Overheard:
    return Overheard({"r": [5, 6, 7]})


def tokens(offset: int, *ids: int, epoch: int = 1, request_id: str = "r") -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(request_id=request_id, epoch=epoch, offset=offset, token_ids=ids)


def end(epoch: int = 1, told: int = 3) -> tokens_pb2.TokenChunk:
    chunk = tokens_pb2.TokenChunk(request_id="r", epoch=epoch, offset=3)
    chunk.finished.reason = generation_pb2.FINISH_REASON_STOP
    chunk.finished.usage.completion_tokens = told
    return chunk


def test_repeats_gaps_and_older_epochs_are_all_right(overheard: Overheard) -> None:
    for chunk in (tokens(0, 5), tokens(0, 5, 6), tokens(2, 7, epoch=2), tokens(1, 6), end(2), end(2)):
        overheard.hear(chunk)
    assert overheard.wrongs() == {}
    assert overheard.ends_of("r") == 1


def test_a_token_that_another_epoch_has_otherwise_is_wrong(overheard: Overheard) -> None:
    overheard.hear(tokens(1, 9, epoch=3))
    assert "epoch 3 published tokens [9] at 1 instead of [6]" in overheard.wrongs()["r"][0]


def test_more_tokens_than_the_answer_has_are_wrong(overheard: Overheard) -> None:
    overheard.hear(tokens(2, 7, 8))
    assert overheard.wrongs()


def test_an_epoch_that_ends_in_two_ways_is_wrong(overheard: Overheard) -> None:
    overheard.hear(end())
    overheard.hear(end(told=2))
    assert "ended twice" in overheard.wrongs()["r"][0]


def test_two_epochs_may_each_end(overheard: Overheard) -> None:
    overheard.hear(end(1))
    overheard.hear(end(2))
    assert overheard.wrongs() == {}
    assert overheard.ends_of("r") == 2


def test_other_peoples_requests_are_passed_over(overheard: Overheard) -> None:
    overheard.hear(tokens(0, 1, 2, 3, request_id="other"))
    assert overheard.wrongs() == {}
    assert overheard.chunks == 0
