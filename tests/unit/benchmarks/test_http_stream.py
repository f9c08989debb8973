"""Reading HTTP answers and their events, however the network cuts them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.http_stream import EventParser, ProtocolError, ResponseParser
from benchmarks.load.sse_target import Completion
from benchmarks.load.trace import Trace

_BODY = b'data: {"a":1}\n\ndata: {"b":2}\r\n\r\n: a comment\n\ndata:[DONE]\n\n'
_EVENTS = [b'{"a":1}', b'{"b":2}', b"[DONE]"]


def _chunked(*parts: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, len(_BODY) - 1))
def test_events_come_out_the_same_wherever_the_bytes_are_cut(places: list[int], chunk_at: int) -> None:
    response, events = ResponseParser(), EventParser()
    seen: list[bytes] = []
    for part in _cut(_chunked(_BODY[:chunk_at], _BODY[chunk_at:]), places):
        seen += events.feed(response.feed(part))
    assert seen == _EVENTS
    assert response.status == 200
    assert response.is_complete
    assert response.keeps_alive


def test_a_body_of_known_length_ends_there() -> None:
    response = ResponseParser()
    assert response.feed(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nhel") == b"hel"
    assert not response.is_complete
    assert response.feed(b"lo") == b"lo"
    assert response.is_complete
    assert response.status == 400


def test_a_body_without_length_ends_with_the_connection() -> None:
    response = ResponseParser()
    response.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it")
    assert not response.is_complete
    response.end()
    assert response.is_complete
    assert not response.keeps_alive


def test_a_chunked_body_cut_off_is_not_complete() -> None:
    response = ResponseParser()
    response.feed(_chunked(b"x" * 20)[:-12])
    response.end()
    assert not response.is_complete


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n"],
)
def test_what_is_not_http_is_refused(answer: bytes) -> None:
    with pytest.raises(ProtocolError, match="not"):
        ResponseParser().feed(answer)


def _event(text: str, reason: str = "null", extra: str = "") -> bytes:
    return f'{{"choices":[{{"text":"{text}","finish_reason":{reason}}}]{extra}}}'.encode()


def test_tokens_are_what_usage_says_and_arrivals_are_events_with_text() -> None:
    completion = Completion(Trace(0.0))
    completion.take(_event("a"), 1.0)
    completion.take(_event("b"), 2.0)
    completion.take(_event("", '"length"', ',"usage":{"completion_tokens":3}'), 2.5)
    completion.take(b"[DONE]", 2.6)
    assert completion.is_done
    assert completion.trace.tokens == 3
    assert completion.trace.arrivals_s == [1.0, 2.0]


def test_without_usage_every_event_with_text_is_a_token() -> None:
    completion = Completion(Trace(0.0))
    completion.take(_event("a"), 1.0)
    completion.take(_event("b", '"stop"'), 2.0)
    completion.take(b"[DONE]", 2.1)
    assert completion.trace.tokens == 2
    assert completion.trace.arrivals_s == [1.0, 2.0]


def test_an_error_among_the_events_fails_the_request() -> None:
    completion = Completion(Trace(0.0))
    completion.take(b'{"error":{"code":500,"message":"no slot"}}', 1.0)
    assert completion.trace.error == "no slot"
    assert not completion.is_done
