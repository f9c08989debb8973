"""KV caches of other types than usual, and caches sized in bytes, with llama.cpp itself.

Answers are compared on one thread, and of prompts that are computed in a step of less than 64 rows.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from harness.gguf_files import tiny_model
from harness.model_kinds import recurrent_model
from harness.serving import Served
from harness.worker import DEMO_MODEL, WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus
from inferflux.common.llama.native import llama
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.envelope import Refusal, Refused, blank, open_envelope
from inferflux.worker.engine.llama.loading import LoadError
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.files.kv_types import NUMBER_TYPES, KvType, KvTypes

CELLS = 1024
ANSWER_TOKENS = 24
PROMPT = [int(token) for token in np.random.default_rng(3).integers(300, 2000, 40)]


def load(path: Path = DEMO_MODEL, **options: Any) -> Backend:
    usual: dict[str, Any] = {
        "slots": 2,
        "sequences": 8,
        "batch_tokens": 512,
        "threads": 1,
        "flash_attention": True,
        "prefill_cells": 0,
    }
    if "kv_bytes" not in options:
        usual["kv_cells"] = CELLS
    return Backend(engine_pb2.EngineConfig(model_path=str(path), **(usual | options)))


def test_every_type_takes_what_ggml_says() -> None:
    assert set(NUMBER_TYPES) == set(get_args(KvType))
    row_bytes = llama._lib.ggml_row_size
    row_bytes.restype, row_bytes.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_int64]
    name_of = llama._lib.ggml_type_name
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    for name, kind in NUMBER_TYPES.items():
        assert name_of(kind.ggml_type).decode() == name
        assert kind.bytes_of(256) == row_bytes(kind.ggml_type, 256)
    assert NUMBER_TYPES["q8_0"].bytes_of(33) == 68, "blocks are whole"


@pytest.mark.long
@pytest.mark.parametrize("name", NUMBER_TYPES)
def test_a_model_answers_with_every_type_of_cache(name: KvType) -> None:
    backend = load(kv_type_k=name, kv_type_v=name)
    types = KvTypes(name, name)
    f16 = load()
    assert backend.kv_bytes * NUMBER_TYPES["f16"].bytes_of(32) == f16.kv_bytes * types.key_type.bytes_of(32)
    served = Served(backend)
    served.run(batch_item("one", prompt=PROMPT, max_tokens=ANSWER_TOKENS))
    assert len(served.tokens["one"]) == ANSWER_TOKENS


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "values"),
    [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "f16"), ("f16", "q8_0"), ("bf16", "bf16")],
)
def test_a_prefix_a_preemption_and_a_restored_state_change_no_answer(keys: KvType, values: KvType) -> None:
    backend = load(kv_type_k=keys, kv_type_v=values)
    expected = Served(backend, has_prefix_cache=False)
    expected.run(batch_item("alone", prompt=PROMPT, max_tokens=ANSWER_TOKENS))
    backend._main.clear()
    served = Served(backend)
    for name in ("first", "again"):
        served.run(batch_item(name, prompt=PROMPT, max_tokens=ANSWER_TOKENS))
    assert served.cached == {"first": 0, "again": len(PROMPT) - 1}
    item = batch_item("swapped", prompt=PROMPT[::-1], max_tokens=ANSWER_TOKENS)
    served.start_and_step(item, until_tokens=ANSWER_TOKENS // 2)
    served.swap_out("t.swapped")
    served.resume("t.swapped", 0)
    served.finish("swapped")
    assert served.swap_ins == 1
    served.run(batch_item("third", prompt=PROMPT, max_tokens=ANSWER_TOKENS))
    backend._main.clear()
    reversed_alone = Served(backend, has_prefix_cache=False)
    reversed_alone.run(batch_item("alone", prompt=PROMPT[::-1], max_tokens=ANSWER_TOKENS))
    assert served.tokens["swapped"] == reversed_alone.tokens["alone"]
    for name in ("first", "again", "third"):
        assert served.tokens[name] == expected.tokens["alone"]


def test_state_of_another_type_is_foreign() -> None:
    saved = load(kv_type_k="q8_0", kv_type_v="q8_0").identity
    envelope = blank(saved, "s", np.arange(40, dtype=np.int32), 1000)
    envelope.seal()
    assert open_envelope(envelope.buffer, saved).header.identity == saved
    others: list[dict[str, Any]] = [
        {},
        {"kv_type_k": "q8_0"},
        {"kv_type_v": "q8_0"},
        {"kv_type_k": "q4_0", "kv_type_v": "q8_0"},
    ]
    for types in others:
        with pytest.raises(Refused) as refused:
            open_envelope(envelope.buffer, load(**types).identity)
        assert refused.value.reason is Refusal.FOREIGN
        assert "type" in str(refused.value)


@pytest.mark.long
def test_state_that_was_rotated_is_foreign_where_rotation_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, quantized = load().identity, load(kv_type_k="q8_0").identity
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert load().identity == usual
    assert load(kv_type_k="q8_0").identity.difference(quantized) == "is_rotated"


@pytest.mark.long
def test_a_long_prompt_is_prefilled_apart_where_only_keys_are_quantized() -> None:
    assert load(kv_type_k="q8_0", prefill_cells=512).prefill_cells == 512
    off = load(kv_type_v="q8_0", prefill_cells=512)
    assert off.prefill_cells == 0
    assert "q8_0" in off.prefill_context_error


def test_types_that_a_model_cannot_have_are_refused_by_name(tmp_path: Path) -> None:
    """The tiny model's heads have 16 numbers, and a quantized block 32."""
    path = tiny_model().write(tmp_path / "tiny.gguf")
    load(path, kv_type_k="bf16", kv_type_v="bf16")
    with pytest.raises(
        LoadError, match=r"INFERFLUX_WORKER_KV_TYPE_K is q8_0, .*block size 32 does not divide"
    ):
        load(path, kv_type_k="q8_0")
    with pytest.raises(LoadError, match=r"INFERFLUX_WORKER_KV_TYPE_V is q4_0: .*V cache type q4_0"):
        load(path, kv_type_v="q4_0")


@pytest.mark.long
@pytest.mark.parametrize("values", ["f16", "q8_0"])
def test_bytes_are_filled_and_not_exceeded(values: KvType) -> None:
    of_one = load(kv_type_v=values, kv_cells=256).kv_bytes // 256
    asked = of_one * 1000
    backend = load(kv_type_v=values, kv_bytes=asked)
    assert backend.cells == 768
    assert backend.kv_bytes == of_one * 768 <= asked
    assert backend.context_length == 768


@pytest.mark.long
def test_bytes_that_are_too_few_for_one_sequence_are_refused_with_both_numbers() -> None:
    of_one = load(kv_cells=256).kv_bytes // 256
    for context_length, least in ((0, 256), (600, 768)):
        few = of_one * least - 1
        with pytest.raises(LoadError) as refused:
            load(kv_bytes=few, context_length=context_length)
        assert f"INFERFLUX_WORKER_KV_BYTES is {few}: " in str(refused.value)
        assert f"takes {of_one * least} bytes" in str(refused.value)


@pytest.mark.long
def test_bytes_beyond_the_memory_are_refused_by_name() -> None:
    with pytest.raises(LoadError, match=r"INFERFLUX_WORKER_KV_BYTES is \d+: .* GiB are free"):
        load(kv_bytes=1 << 50)


@pytest.mark.long
def test_a_model_without_cells_is_not_sized_in_bytes(tmp_path: Path) -> None:
    path = recurrent_model().write(tmp_path / "recurrent.gguf")
    with pytest.raises(LoadError, match=r"INFERFLUX_WORKER_KV_BYTES is 1000000: .*KV_CELLS"):
        load(path, kv_bytes=1_000_000)


@pytest.mark.long
async def test_a_worker_is_sized_in_bytes_and_says_what_its_cache_takes(
    nats_url: str, tmp_path: Path
) -> None:
    of_one = load(kv_type_k="q8_0", kv_type_v="q8_0", kv_cells=256).kv_bytes // 256
    bus = await Bus.connect(nats_url, name="kv-type-tests")
    variables = {
        "INFERFLUX_WORKER_KV_TYPE_K": "q8_0",
        "INFERFLUX_WORKER_KV_TYPE_V": "q8_0",
        "INFERFLUX_WORKER_THREADS": "1",
    }
    worker = WorkerProcess(tmp_path, nats_url, bus, "sized", INFERFLUX_WORKER_KV_BYTES="1 MB", **variables)
    try:
        await worker.start_ready()
        assert worker.status is not None
        assert worker.status.kv_cells == 1_000_000 // of_one // 256 * 256
        assert worker.status.kv_bytes == worker.status.kv_cells * of_one
        assert worker.status.kv_types == "q8_0"
        stream = await worker.read("one")
        assert not (await worker.submit(batch_item("one", prompt=PROMPT, max_tokens=8))).refused
        assert len(token_ids(await read_to_end(stream))) == 8
        stream.close()
        await worker.until(lambda: worker.status is not None and worker.status.kv_cells_width >= len(PROMPT))
    finally:
        worker.kill()
    small = WorkerProcess(tmp_path, nats_url, bus, "small", INFERFLUX_WORKER_KV_BYTES="10kB", **variables)
    try:
        await small.start()
        assert await small.wait() == 2
        line = next(line for line in small.log_path.read_text().splitlines() if line.startswith("worker: "))
        assert "INFERFLUX_WORKER_KV_BYTES is 10000: one sequence of 256 tokens takes" in line
        assert f"{256 * of_one} bytes" in line
    finally:
        small.kill()
        await bus.close()
