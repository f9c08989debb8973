"""What token subjects must not say to any reader."""

from __future__ import annotations

import pytest
from chaos.published import Published

from inferflux.v1 import generation_pb2, tokens_pb2


@pytest.fixture
def published() -> Published:
    return Published({"r": [5, 6, 7]})


def tokens(offset: int, *ids: int, epoch: int = 1, request_id: str = "r") -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(request_id=request_id, epoch=epoch, offset=offset, token_ids=ids)


def end(epoch: int = 1, told: int = 3) -> tokens_pb2.TokenChunk:
    chunk = tokens_pb2.TokenChunk(request_id="r", epoch=epoch, offset=3)
    chunk.finished.reason = generation_pb2.FINISH_REASON_STOP
    chunk.finished.usage.completion_tokens = told
    return chunk


def test_repeats_gaps_and_older_epochs_are_all_right(published: Published) -> None:
    for chunk in (tokens(0, 5), tokens(0, 5, 6), tokens(2, 7, epoch=2), tokens(1, 6), end(2), end(2)):
        published.add(chunk)
    assert published.wrongs() == {}
    assert published.ends_of("r") == 1


def test_a_token_that_another_epoch_has_otherwise_is_wrong(published: Published) -> None:
    published.add(tokens(1, 9, epoch=3))
    assert "epoch 3 published tokens [9] at 1 instead of [6]" in published.wrongs()["r"][0]


def test_more_tokens_than_the_answer_has_are_wrong(published: Published) -> None:
    published.add(tokens(2, 7, 8))
    assert published.wrongs()


def test_an_epoch_that_ends_in_two_ways_is_wrong(published: Published) -> None:
    published.add(end())
    published.add(end(told=2))
    assert "ended twice" in published.wrongs()["r"][0]


def test_two_epochs_may_each_end(published: Published) -> None:
    published.add(end(1))
    published.add(end(2))
    assert published.wrongs() == {}
    assert published.ends_of("r") == 2


def test_other_peoples_requests_are_skipped(published: Published) -> None:
    published.add(tokens(0, 1, 2, 3, request_id="other"))
    assert published.wrongs() == {}
    assert published.chunks == 0
