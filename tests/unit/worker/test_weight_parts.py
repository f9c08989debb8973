"""Which part of a model a tensor belongs to, and what it takes."""

from __future__ import annotations

import ctypes

import pytest
from harness.gguf_files import tiny_model

from inferflux.common.llama.native import llama
from inferflux.worker.files.gguf_header import parse_header
from inferflux.worker.files.weight_parts import TYPE_SIZES, PartCounts, bytes_of

F32 = 0
Q8_0 = 8


@pytest.mark.parametrize("kind", sorted(TYPE_SIZES))
def test_types_are_as_large_as_ggml_says(kind: int) -> None:
    library = llama._lib
    size, block = library.ggml_type_size, library.ggml_blck_size
    size.restype, size.argtypes = ctypes.c_size_t, [ctypes.c_int]
    block.restype, block.argtypes = ctypes.c_int64, [ctypes.c_int]
    assert (block(kind), size(kind)) == TYPE_SIZES[kind]


def test_numbers_take_whole_blocks_and_an_unknown_type_the_most() -> None:
    assert bytes_of(64, Q8_0) == 68
    assert bytes_of(65, Q8_0) == 102
    assert bytes_of(10, 999) == 40


def test_tensors_are_added_up_by_part() -> None:
    counts = PartCounts()
    for name, numbers in {
        "token_embd.weight": 1,
        "token_types.weight": 2,
        "output_norm.weight": 4,
        "output.weight": 8,
        "blk.0.attn_q.weight": 16,
        "blk.0.ffn_up_exps.weight": 32,
        "blk.1.ffn_up_shexp.weight": 64,
        "blk.1.ffn_gate_up_exps.weight": 128,
        "blk.2.nextn.eh_proj.weight": 256,
    }.items():
        counts.add(name, numbers, F32)
    parts = counts.of(2)
    assert (parts.input, parts.embedding) == (12, 4)
    assert parts.output == 48 + 1024
    assert parts.layers == (192, 768)
    assert parts.experts == (128, 512)
    assert not parts.shares_output


def test_embeddings_that_are_the_output_as_well_count_in_both() -> None:
    counts = PartCounts()
    counts.add("token_embd.weight", 10, F32)
    counts.add("output_norm.weight", 1, F32)
    parts = counts.of(0)
    assert (parts.input, parts.output, parts.shares_output) == (40, 44, True)


def test_the_parts_of_a_file_are_all_of_its_weights() -> None:
    file = tiny_model()
    parts = parse_header(file.data()).parts.of(1)
    total = sum(tensor.values.nbytes for tensor in file.tensors.values())
    again = parts.embedding if parts.shares_output else 0
    assert parts.input + parts.output + sum(parts.layers) - again == total
