"""The head of a file that is not trusted: what is read of it, and what is refused by the field's name."""

from __future__ import annotations

import math
import struct
import time
from dataclasses import replace

import pytest
from harness import gguf_files
from harness.gguf_files import Field, array, boolean, f32, i32, nested, text, tiny_model, u32, u64
from harness.profiles import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferflux.worker.files.gguf_header import Array, Header, HeaderError, Kind, parse_header, strings_of
from inferflux.worker.files.kv_types import USUAL
from inferflux.worker.files.model_checks import check_metadata, check_tokens
from inferflux.worker.files.model_facts import facts_of

WHOLE = tiny_model().data()
HEAD_BYTES = len(tiny_model().head())


def checked(file: gguf_files.Gguf) -> Header:
    view = file.data()
    header = parse_header(view)
    check_metadata(view, header)
    return header


def test_values_arrays_and_the_extents_are_read() -> None:
    header = checked(tiny_model())
    assert header.metadata["llama.context_length"] == gguf_files.CONTEXT
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["tokenizer.chat_template"] == "{{ messages[0].content }}"
    assert (header.n_tensors, header.end) == (11, HEAD_BYTES)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Array)
    assert tokens.kind == Kind.STRING
    assert [token.decode() for token in strings_of(WHOLE, tokens)] == gguf_files.TOKENS


CONTEXT_LENGTHS: dict[str, tuple[Field | None, str]] = {
    "zero": (u32(0), "is 0: it must be 2 to 2147483647"),
    "one": (u32(1), "is 1:"),
    "negative": (i32(-1), "is -1:"),
    "2^31": (u32(2**31), "is 2147483648:"),
    "2^32-1": (u32(2**32 - 1), "is 4294967295:"),
    "2^63": (u64(2**63), "is 9223372036854775808:"),
    "string": (text("128"), "is a string: it must be an integer"),
    "nan": (f32(math.nan), "is a fraction: it must be an integer"),
    "boolean": (boolean(1), "is a truth value: it must be an integer"),
    "missing": (None, "is missing"),
    "2^62 elements": (array(4, 2**62, b""), "has 4611686018427387904 elements: the file is shorter"),
}


@pytest.mark.parametrize("name", CONTEXT_LENGTHS)
def test_an_odd_context_length_is_refused_by_name(name: str) -> None:
    value, why = CONTEXT_LENGTHS[name]
    with pytest.raises(HeaderError) as caught:
        checked(tiny_model().having({"llama.context_length": value}))
    assert f"llama.context_length {why}" in str(caught.value)


@pytest.mark.parametrize("name", ["embedding_length", "block_count", "attention.head_count", "vocab_size"])
@pytest.mark.parametrize("value", [u32(2**32 - 1), u64(2**63), i32(-5), text("x")])
def test_other_dimensions_have_bounds_too(name: str, value: Field) -> None:
    with pytest.raises(HeaderError, match=rf"llama\.{name} is "):
        checked(tiny_model().having({f"llama.{name}": value}))


STRUCTURES: dict[str, tuple[gguf_files.Gguf, str]] = {
    "arrays nested 5,000 deep": (tiny_model().having({"a.b": nested(5000)}), "a.b is an array of arrays"),
    "2^31 strings": (tiny_model().having({"a.b": array(8, 2**31, b"")}), "a.b has 2147483648 elements"),
    "more strings than bytes": (tiny_model().having({"a.b": array(8, 3 << 20, b"")}), "cut off at a.b"),
    "a string of 2^63": (tiny_model().having({"a.b": struct.pack("<IQ", 8, 2**63)}), "a.b has a string of"),
    "an unknown type": (tiny_model().having({"a.b": struct.pack("<I", 77)}), "a.b is of the unknown type 77"),
    "nan": (tiny_model().having({"llama.rope.freq_base": f32(math.nan)}), "llama.rope.freq_base is nan"),
    "2^63 tensors": (replace(tiny_model(), n_tensors=2**63), "the tensor count is"),
    "2^63 fields": (replace(tiny_model(), n_metadata=2**63), "the metadata count is"),
    "no tensors": (replace(tiny_model(), tensors={}), "holds no tensors"),
    "no architecture": (tiny_model().having({"general.architecture": None}), "general.architecture"),
    "a number as architecture": (
        tiny_model().having({"general.architecture": u32(1)}),
        "architecture must be",
    ),
    "version 1": (replace(tiny_model(), version=1), "version 1 is not supported"),
    "a field twice": (
        replace(tiny_model(), extra=struct.pack("<Q", 12) + b"general.name" + text("x"), n_metadata=22),
        "general.name is in the file twice",
    ),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_an_odd_structure_is_refused_by_name(name: str) -> None:
    file, why = STRUCTURES[name]
    with pytest.raises(HeaderError) as caught:
        checked(file)
    assert why in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 32), (1, 1, 1, 1, 1024), (2**62, 4), ()])
def test_a_shape_that_cannot_be_is_refused_with_the_tensors_name(shape: tuple[int, ...]) -> None:
    query = tiny_model().tensors["blk.0.attn_q.weight"]
    with pytest.raises(HeaderError, match=r"tensor blk\.0\.attn_q\.weight"):
        checked(tiny_model().with_tensor("blk.0.attn_q.weight", replace(query, shape=shape)))


def test_a_token_spelled_twice_is_refused_with_its_id() -> None:
    with pytest.raises(HeaderError, match=r"tokenizer\.ggml\.tokens has b'a' twice, again as id 2"):
        check_tokens([b"a", b"b", b"a"])


def test_what_the_file_names_cannot_break_the_line() -> None:
    with pytest.raises(HeaderError) as caught:
        checked(tiny_model().having({"a\nb\x1b[31m": struct.pack("<I", 77)}))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("keep", range(0, HEAD_BYTES, 61))
def test_a_head_cut_off_anywhere_is_refused(keep: int) -> None:
    with pytest.raises(HeaderError):
        checked_bytes(WHOLE[:keep])


@settings(max_examples=examples(300))
@example([(64, b"\x00")])  # in the architecture's name
@example([(127, b"\x00\x00\xd6\x90\x00\x00\r")])  # a character that Unicode does not assign
@given(st.lists(st.tuples(st.integers(0, HEAD_BYTES - 1), st.binary(min_size=1, max_size=8)), max_size=4))
def test_damage_anywhere_ends_in_a_header_or_a_refusal_soon(damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(WHOLE)
    for at, replacement in damage:
        data[at : at + len(replacement)] = replacement
    began = time.monotonic()
    refusal = refusal_of(bytes(data))
    assert refusal.isprintable()
    assert len(refusal) < 700
    assert time.monotonic() - began < 10


def refusal_of(data: bytes) -> str:
    """Why a file is refused; "" if it is not."""
    try:
        checked_bytes(data)
    except HeaderError as refusal:
        return str(refusal)
    return ""


def checked_bytes(data: bytes) -> None:
    header = parse_header(data)
    check_metadata(data, header)
    assert facts_of(data, header).kv_bytes_per_token(USUAL) < 1 << 60
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array) and tokens.kind == Kind.STRING:
        check_tokens(strings_of(data, tokens))
