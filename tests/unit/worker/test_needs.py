"""What the head of a file says of a model, and what memory it takes by that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness.gguf_files import DIM, HEADS, TOKENS, Field, Gguf, f32, numbers, text, tiny_model, u32
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.files.gguf_header import HeaderError, parse_header
from inferflux.worker.files.kv_types import USUAL, KvTypes
from inferflux.worker.files.model_checks import check_metadata
from inferflux.worker.files.model_facts import ModelFacts, facts_of
from inferflux.worker.files.needs import Asked, Beside, needs_of

GIB = 1 << 30


def facts(file: Gguf) -> ModelFacts:
    view = file.data()
    header = parse_header(view)
    check_metadata(view, header)
    return facts_of(view, header)


def integers(*values: int) -> Field:
    return numbers(5, np.array(values, np.int32))


def test_the_tiny_model_is_what_it_was_written_as() -> None:
    file = tiny_model()
    found = facts(file)
    assert found.parameters == sum(tensor.values.size for tensor in file.tensors.values())
    assert (found.quantization, found.vocabulary_size) == ("F32", len(TOKENS))
    assert (found.has_chat_template, found.n_experts, found.n_active_experts) == (True, 0, 0)
    assert not found.is_moe
    # Keys and values of two bytes, of one layer.
    assert found.kv_bytes_per_token(USUAL) == 2 * 2 * DIM
    assert found.kv_bytes_per_token(KvTypes("q8_0", "f16")) == 34 + 2 * DIM


def test_experts_are_read_under_the_names_of_the_architecture() -> None:
    found = facts(tiny_model().having({"llama.expert_count": u32(8), "llama.expert_used_count": u32(2)}))
    assert (found.is_moe, found.n_experts, found.n_active_experts) == (True, 8, 2)
    assert facts(tiny_model().having({"other.expert_count": u32(8)})).n_experts == 0


@pytest.mark.parametrize(
    ("stated", "heads"),
    [
        (integers(4, 0, 2), (4, 0, 2)),
        (integers(4, 2), (4, 2, 2)),
        (integers(4, 2, 1, 9, 9), (4, 2, 1)),
        (integers(), (HEADS, HEADS, HEADS)),
        (u32(1), (1, 1, 1)),
        (None, (HEADS, HEADS, HEADS)),
    ],
    ids=["of each", "the last for the rest", "too many", "none", "one for all", "left out"],
)
def test_heads_are_one_number_or_one_for_each_layer(stated: Field | None, heads: tuple[int, ...]) -> None:
    key = "llama.attention.head_count_kv"
    found = facts(tiny_model().having({"llama.block_count": u32(3), key: stated}))
    assert found.kv_heads == heads
    assert found.kv_bytes_per_token(USUAL) == sum(heads) * (DIM // HEADS) * 2 * 2


@pytest.mark.parametrize(("kind", "name"), [(12, "Q4_K"), (8, "Q8_0"), (39, "MXFP4"), (99, "")])
def test_the_quantization_is_what_most_weights_are_kept_in(kind: int, name: str) -> None:
    file = tiny_model()
    largest = max(file.tensors, key=lambda key: file.tensors[key].values.size)
    assert facts(file.with_tensor(largest, replace(file.tensors[largest], kind=kind))).quantization == name


# Each field that memory is computed from, with what no model has. It is refused by its name, or bounded.
_FIELDS = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "expert_count",
    "expert_used_count",
    "vocab_size",
)
_ODD = {
    "2^32-1": u32(2**32 - 1),
    "a text": text("8"),
    "nan": f32(float("nan")),
    "negative ones": integers(-1, -5),
    "huge ones": numbers(10, np.array([2**62, 2**63], np.uint64)),
    "fractions": numbers(6, np.array([0.5], np.float32)),
}


@pytest.mark.parametrize("odd", _ODD)
@pytest.mark.parametrize("field", _FIELDS)
def test_a_hostile_field_is_refused_by_its_name(field: str, odd: str) -> None:
    key = f"llama.{field}"
    with pytest.raises(HeaderError) as caught:
        facts(tiny_model().having({key: _ODD[odd]}))
    assert key in str(caught.value)


def test_tensors_that_no_machine_could_hold_are_refused() -> None:
    file = tiny_model()
    huge = {name: replace(tensor, shape=(2**60,)) for name, tensor in file.tensors.items()}
    with pytest.raises(HeaderError, match="no such model can be"):
        facts(replace(file, tensors=huge))


def needs(found: ModelFacts, *, room: int = GIB, size: int = 1 << 20, **asked: int) -> tuple[int, int]:
    """(cells, bytes in all)."""
    usual: dict[str, Any] = {"context_length": 0, "slots": 4}
    got = needs_of(size, 2048, found, Asked(**(usual | asked)), room=room)
    assert got.total == got.weights + got.kv + got.compute
    return got.cells, got.total


@given(
    layers=st.integers(0, 100),
    heads=st.integers(0, 64),
    length=st.integers(0, 512),
    size=st.integers(0, 1 << 40),
    room=st.integers(0, 1 << 40),
    slots=st.integers(1, 256),
    context_length=st.integers(0, 2**31 - 1),
)
def test_needs_are_no_less_than_the_file_and_a_cache_leaves_half_of_the_room(
    layers: int, heads: int, length: int, size: int, room: int, slots: int, context_length: int
) -> None:
    found = ModelFacts(kv_heads=(heads,) * layers, key_length=length, value_length=length)
    asked = Asked(context_length=context_length, slots=slots, prefill_cells=0)
    got = needs_of(size, 2048, found, asked, room=room)
    assert got.weights == size
    assert got.cells % 256 == 0
    assert got.cells >= max(context_length, 256)
    cell = found.kv_bytes_per_token(USUAL)
    if cell and got.cells > max(context_length, 256) + 255:
        assert got.cells * cell <= max(room - size, 0) // 2 + 256 * (cell + (1 << 12))


def test_what_is_asked_for_decides_the_cache() -> None:
    found = facts(tiny_model())
    assert needs(found)[0] == 4096, "slots of 1,024 tokens each"
    assert needs(found, context_length=8000)[0] == 8192
    assert needs(found, kv_cells=300)[0] == 512
    assert needs(found, kv_bytes=found.kv_bytes_per_token(USUAL) * 1024)[0] == 1024
    small, large = needs(found, size=1 << 20), needs(found, size=9 << 20)
    assert large[1] - small[1] == 8 << 20


def test_a_projector_is_here_wherever_the_layers_are() -> None:
    found = facts(tiny_model())
    asked = Asked(0, 1, kv_cells=512)
    for is_elsewhere in (False, True):
        without, with_it = (
            needs_of(
                10 * GIB,
                2048,
                found,
                asked,
                room=GIB,
                beside=Beside(projector_bytes=n_bytes),
                is_elsewhere=is_elsewhere,
            )
            for n_bytes in (0, GIB)
        )
        assert with_it.total == without.total + GIB
    # What is not set of the cache takes half of what both files leave.
    roomy = Asked(0, 1)
    left = needs_of(GIB, 1 << 24, found, roomy, room=2 * GIB, beside=Beside(projector_bytes=GIB // 2))
    alone = needs_of(GIB + GIB // 2, 1 << 24, found, roomy, room=2 * GIB)
    assert (left.cells, left.total) == (alone.cells, alone.total)


def test_layers_that_are_elsewhere_take_no_memory_here() -> None:
    found = facts(tiny_model())
    asked = Asked(0, 1, kv_cells=512)
    here = needs_of(10 * GIB, 2048, found, asked, room=GIB)
    elsewhere = needs_of(10 * GIB, 2048, found, asked, room=GIB, is_elsewhere=True)
    assert (elsewhere.weights, elsewhere.kv) == (found.parts.input, 0)
    assert elsewhere.cells == here.cells
    assert elsewhere.compute == here.compute


def test_a_draft_model_counts_with_a_context_of_as_many_cells() -> None:
    found = facts(tiny_model())
    asked = Asked(0, 1, kv_cells=512)
    draft = Beside(draft_bytes=GIB, draft=found)
    without, with_it = (
        needs_of(GIB, 2048, found, asked, room=GIB, beside=each) for each in (Beside(), draft)
    )
    assert with_it.weights == without.weights + GIB
    assert with_it.kv >= without.kv + 512 * found.kv_bytes_per_token(USUAL)
    assert with_it.compute > without.compute
    # A cache whose size is not set leaves room for the draft model's.
    roomy = Asked(0, 1)
    alone, drafted = (
        needs_of(0, 1 << 24, found, roomy, room=GIB, beside=each).cells
        for each in (Beside(), replace(draft, draft_bytes=0))
    )
    assert drafted < alone


def test_the_context_of_deterministic_requests_counts_where_the_model_has_one_from_its_start() -> None:
    found = facts(tiny_model())
    asked = Asked(1024, 1, kv_cells=4096, prefill_cells=0)
    without, with_it = (
        needs_of(GIB, 2048, found, asked, room=GIB, beside=Beside(is_deterministic=each))
        for each in (False, True)
    )
    assert with_it.kv == without.kv * (4096 + 1280) // 4096
    assert with_it.compute > without.compute
    # A cache whose size is not set leaves room for it.
    roomy = needs_of(0, 1 << 40, found, Asked(0, 1), room=GIB, beside=Beside(is_deterministic=True))
    assert roomy.kv < GIB * 3 // 4


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_what_an_engine_keeps_of_images_and_for_the_disk_counts_wherever_the_layers_are(
    is_elsewhere: bool,
) -> None:
    found = facts(tiny_model())
    asked = Asked(0, 1, kv_cells=512)
    without, with_it = (
        needs_of(
            GIB, 2048, found, asked, room=GIB, beside=Beside(kept_bytes=n_bytes), is_elsewhere=is_elsewhere
        ).total
        for n_bytes in (0, GIB)
    )
    assert with_it == without + GIB
