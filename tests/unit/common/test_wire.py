"""Finding the field that is not UTF-8 in bytes that protobuf refused."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from inferflux.common.calls import wire
from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted
from inferflux.v1 import inference_pb2

MARK = b"\x7f\x7f\x7f\x7f"


def spoiled(request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest) -> bytes:
    """The request's bytes with every MARK made invalid UTF-8."""
    return request.SerializeToString().replace(MARK, b"\xff\xfe\xff\xfe")


def test_fields_are_named_by_their_path() -> None:
    mark = MARK.decode()
    message = inference_pb2.ChatMessage
    chat = inference_pb2.ChatRequest(messages=[message(role="a"), message(role="b", content=mark)])
    assert wire.find_invalid_utf8(spoiled(chat), chat.DESCRIPTOR) == "messages[1].content"
    assert wire.find_invalid_utf8(spoiled(inference_pb2.ChatRequest(model=mark)), chat.DESCRIPTOR) == "model"
    stop = inference_pb2.GenerateRequest(text="fine")
    stop.params.stop.extend(["a", "b", mark])
    stop.params.sampling.top_k = 3
    assert wire.find_invalid_utf8(spoiled(stop), stop.DESCRIPTOR) == "params.stop[2]"


def test_bytes_fields_may_hold_anything() -> None:
    request = inference_pb2.GenerateRequest(text_bytes=b"\xff\xfe")
    assert wire.find_invalid_utf8(request.SerializeToString(), request.DESCRIPTOR) == ""


@given(st.binary(max_size=200))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x12\x02\x12\x00" * 30)
def test_any_bytes_are_explained_and_a_named_field_is_only_named_when_protobuf_refuses(data: bytes) -> None:
    error = wire.explain(data, inference_pb2.ChatRequest.DESCRIPTOR, "bad")
    assert error.message
    if error.field:
        with pytest.raises(DecodeError):
            inference_pb2.ChatRequest.FromString(data)


def test_without_a_descriptor_the_parser_speaks() -> None:
    error = wire.explain(b"\xff", None, "truncated")
    assert "truncated" in error.message


def refuse_to_parse(data: bytes) -> None:
    raise AssertionError(f"{len(data)} bytes were decoded")


def test_a_message_over_its_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(ResourceExhausted) as caught:
        wire.decode(b"x" * 101, refuse_to_parse, 100)
    assert caught.value.reason == "BODY_TOO_LARGE"
    assert "101" in caught.value.message
    assert "100" in caught.value.message


@pytest.mark.parametrize(
    "filling",
    [
        b"\x12\x00",  # empty messages
        b"\x12\x02\x0a\x00",  # messages with an empty role
        b"\x1a\x04\x0a\x02\x4a\x00",  # params, sampling, an empty logit bias each
        b"\x20\x01",  # priority, again and again
        b"\x7a\x00\x20\x01",  # unknown fields between known ones
    ],
)
def test_a_message_of_too_many_fields_is_refused_before_it_is_decoded(filling: bytes) -> None:
    request = inference_pb2.ChatRequest
    data = filling * (1_000_000 // len(filling))
    assert request.FromString(data)  # it is valid
    with pytest.raises(ResourceExhausted) as caught:
        wire.decode(data, request.FromString, 2_000_000)
    assert caught.value.reason == "TOO_MANY_FIELDS"


def test_the_largest_chat_that_validation_takes_is_decoded() -> None:
    message = inference_pb2.ChatMessage(role="user", content="x" * 400)
    chat = inference_pb2.ChatRequest(model="m", messages=[message] * 10_000)
    chat.params.sampling.logit_bias.update(dict.fromkeys(range(1024), 1.0))
    data = chat.SerializeToString()
    assert wire.decode(data, inference_pb2.ChatRequest.FromString, 8 << 20) == chat


def test_large_texts_and_packed_ids_are_one_field_each() -> None:
    request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[5] * 1_000_000))
    decoded = wire.decode(request.SerializeToString(), inference_pb2.GenerateRequest.FromString, 8 << 20)
    assert decoded == request
    assert not wire.has_more_fields(request.SerializeToString(), request.DESCRIPTOR, 2)
    assert wire.has_more_fields(request.SerializeToString(), request.DESCRIPTOR, 1)


@pytest.mark.parametrize("filling", [b"\x12\x02\x12\x00", b"\x12\x00", b"\x0a\x01a", b"\x7a\x00"])
def test_explaining_a_large_malformed_message_looks_at_its_beginning_alone(
    filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_fields = 0
    varint = wire._varint

    def counted(data: memoryview, position: int) -> tuple[int, int]:
        nonlocal n_fields
        n_fields += 1
        return varint(data, position)

    monkeypatch.setattr(wire, "_varint", counted)
    data = filling * 1_000_000 + b"\xff"
    error = wire.explain(data, inference_pb2.ChatRequest.DESCRIPTOR, "bad")
    assert error.reason == "UNDECODABLE"
    assert n_fields < 10_000


def test_a_long_text_is_looked_at_in_its_beginning_and_never_blamed_for_where_that_ends() -> None:
    text = "ä" * 1_000_000
    request = inference_pb2.ChatRequest(model="x" + text)
    assert wire.find_invalid_utf8(request.SerializeToString(), request.DESCRIPTOR) == ""
    spoilt = request.SerializeToString()[:5] + b"\xff" + request.SerializeToString()[6:]
    assert wire.find_invalid_utf8(spoilt, request.DESCRIPTOR) == "model"


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused_by_name(data: bytes) -> None:
    try:
        wire.decode(data, inference_pb2.ChatRequest.FromString, 200)
    except (InvalidArgument, ResourceExhausted):
        return
    assert len(data) <= 200
