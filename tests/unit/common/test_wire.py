"""Finding the field that is not UTF-8 in bytes that protobuf refused."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from inferflux.common import wire
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
