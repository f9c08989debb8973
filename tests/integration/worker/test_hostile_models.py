"""Odd and hostile model files: each is refused in one line with its name and the cause, or really served."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness import chat_templates
from harness.gguf_files import (
    DIM,
    TOKENS,
    Gguf,
    Tensor,
    array,
    boolean,
    f32,
    nested,
    numbers,
    text,
    texts,
    tiny_model,
    u32,
)
from harness.worker import WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus
from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.files.model_file import ModelFileError, probe_model_file
from inferflux.worker.processes.engine_host import EngineHost, EngineLoadError

pytestmark = pytest.mark.long

GOOD = tiny_model()
QUERY = GOOD.tensors["blk.0.attn_q.weight"]
VOCABULARY = "tokenizer.ggml"


async def load(path: Path, *, load_limit_s: float = 60.0, kv_cells: int = 0) -> engine_pb2.EngineReady:
    """Have an engine load the model, and end it.

    Raises:
        EngineLoadError: it was refused.
    """
    config = engine_pb2.EngineConfig(
        model_path=str(path),
        slots=2,
        kv_cells=kv_cells,
        batch_tokens=512,
        threads=1,
        flash_attention=True,
        max_itl_factor=5.0,
        step_limit_s=0.2,
    )
    ready: asyncio.Future[engine_pb2.EngineReady] = asyncio.get_running_loop().create_future()

    async def on_report(report: engine_pb2.EngineReport) -> None:
        if report.HasField("ready"):
            ready.set_result(report.ready)

    async def on_death(why: str, _killer: str) -> None:
        raise AssertionError(why)

    host = EngineHost(config, on_report, on_death, load_limit_s=load_limit_s)
    hosting = asyncio.create_task(host.run())
    ready.add_done_callback(lambda _: stopping.append(asyncio.ensure_future(host.stop())))
    stopping: list[asyncio.Future[None]] = []
    await hosting
    await asyncio.gather(*stopping)
    return await ready


def is_one_line_about(path: Path, refusal: str) -> bool:
    return refusal.isprintable() and refusal.startswith(f"{path}: ") and "Traceback" not in refusal


# Refused by the probe, before an engine sees the file.
PROBED: dict[str, tuple[Gguf, str]] = {
    "context length 0": (GOOD.having({"llama.context_length": u32(0)}), "llama.context_length is 0"),
    "context length 2^31": (GOOD.having({"llama.context_length": u32(2**31)}), "is 2147483648"),
    "context length 2^32-1": (GOOD.having({"llama.context_length": u32(2**32 - 1)}), "is 4294967295"),
    "arrays nested 5,000 deep": (GOOD.having({"a.b": nested(5000)}), "a.b is an array of arrays"),
    "2^62 numbers": (GOOD.having({"a.b": array(4, 2**62, b"")}), "a.b has 4611686018427387904 elements"),
    "a token twice": (GOOD.having({f"{VOCABULARY}.tokens": texts([*TOKENS[:-1], "A"])}), "b'A' twice"),
    "no tokens": (GOOD.having({f"{VOCABULARY}.tokens": texts([])}), "the vocabulary is empty"),
    "tokens that are no UTF-8": (
        GOOD.having({f"{VOCABULARY}.tokens": texts(bytes([255, i // 256, i % 256]) for i in range(260))}),
        "GGML_ASSERT",
    ),
    "a vocabulary without bytes": (GOOD.having({f"{VOCABULARY}.model": text("llama")}), "vocabulary"),
    "a vocabulary that takes all memory": (GOOD.having({f"{VOCABULARY}.model": text("rwkv")}), "bad_alloc"),
    "no vocabulary": (GOOD.having({f"{VOCABULARY}.model": text("no_vocab")}), "vocabulary"),
    "an unknown vocabulary": (GOOD.having({f"{VOCABULARY}.model": text("zzz")}), "unknown tokenizer: 'zzz'"),
    "types of too few tokens": (
        GOOD.having({f"{VOCABULARY}.token_type": numbers(5, np.ones(1, np.int32))}),
        "toktypes",
    ),
    "alignment 0": (GOOD.having({"general.alignment": u32(0)}), "alignment 0"),
}


@pytest.mark.parametrize("name", PROBED)
async def test_the_probe_refuses(tmp_path: Path, name: str) -> None:
    file, why = PROBED[name]
    path = file.write(tmp_path / "hostile.gguf")
    with pytest.raises(ModelFileError) as caught:
        await probe_model_file(path)
    assert is_one_line_about(path, str(caught.value)), str(caught.value)
    assert why in str(caught.value)


# The probe reads no weights: these the engine finds, before it is ready.
LOADED: dict[str, tuple[Gguf, str]] = {
    "weights of nan": (GOOD.filled(math.nan), "no finite logits"),
    "weights of infinity": (GOOD.filled(math.inf), "no finite logits"),
    "one matrix of nan": (
        GOOD.with_tensor("blk.0.attn_q.weight", Tensor(np.full((DIM, DIM), np.nan, np.float32))),
        "no finite logits",
    ),
    "a negative epsilon, which ends llama.cpp": (
        GOOD.having({"llama.attention.layer_norm_rms_epsilon": f32(-1)}),
        "GGML_ASSERT(eps >= 0.0f)",
    ),
    "experts without any used": (GOOD.having({"llama.expert_count": u32(8)}), "GGML_ASSERT"),
    "a missing tensor": (GOOD.with_tensor("blk.0.attn_q.weight", None), "'blk.0.attn_q.weight' not found"),
    "a tensor of another shape": (
        GOOD.with_tensor("blk.0.attn_q.weight", Tensor(np.zeros((16, DIM), np.float32))),
        "'blk.0.attn_q.weight' has wrong shape",
    ),
    "a tensor far away": (
        GOOD.with_tensor("blk.0.attn_q.weight", replace(QUERY, offset=2**63)),
        "'blk.0.attn_q.weight' has offset",
    ),
    "an unknown kind of tensor": (
        GOOD.with_tensor("blk.0.attn_q.weight", replace(QUERY, kind=99)),
        "invalid ggml type 99",
    ),
    "more layers than there are": (GOOD.having({"llama.block_count": u32(3)}), "not found"),
    "heads that do not divide": (GOOD.having({"llama.attention.head_count": u32(3)}), "n_rot"),
}


@pytest.mark.parametrize("name", LOADED)
async def test_the_engine_refuses(tmp_path: Path, name: str) -> None:
    file, why = LOADED[name]
    path = file.write(tmp_path / "hostile.gguf")
    await probe_model_file(path)
    with pytest.raises(EngineLoadError) as caught:
        await load(path)
    assert is_one_line_about(path, str(caught.value)), str(caught.value)
    assert why in str(caught.value)


async def test_damage_anywhere_in_the_head_is_survived(tmp_path: Path) -> None:
    draw = random.Random(11)
    whole, head_bytes = GOOD.data(), len(GOOD.head())
    for _ in range(12):
        damaged = bytearray(whole)
        for at in draw.sample(range(head_bytes), 3):
            damaged[at] = draw.randrange(256)
        path = tmp_path / "damaged.gguf"
        path.write_bytes(damaged)
        try:
            await probe_model_file(path)
        except ModelFileError as refusal:
            problem = "" if is_one_line_about(path, str(refusal)) else str(refusal)
        else:
            problem = ""
        assert not problem


async def test_weights_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(GOOD.data()[:-1000])
    with pytest.raises(EngineLoadError) as caught:
        await load(path)
    assert is_one_line_about(path, str(caught.value)), str(caught.value)


async def test_a_context_length_beyond_the_memory_is_cut_to_what_fits(tmp_path: Path) -> None:
    path = GOOD.having({"llama.context_length": u32(2**31 - 1)}).write(tmp_path / "long.gguf")
    ready = await load(path)
    assert 256 <= ready.context_length <= ready.kv_cells < 2**31 - 1


async def test_cells_that_were_asked_for_and_do_not_fit_are_refused_with_both_numbers(tmp_path: Path) -> None:
    path = GOOD.write(tmp_path / "good.gguf")
    with pytest.raises(EngineLoadError) as caught:
        await load(path, kv_cells=2**31)
    refusal = str(caught.value)
    assert is_one_line_about(path, refusal)
    assert "INFERFLUX_WORKER_KV_CELLS is 2147483648" in refusal
    assert "GiB of memory" in refusal
    assert "GiB are free" in refusal


async def test_an_engine_that_does_not_finish_loading_is_ended(tmp_path: Path) -> None:
    path = GOOD.write(tmp_path / "good.gguf")
    with pytest.raises(EngineLoadError, match=r"good\.gguf: the model was not loaded within 0\.01 s"):
        await load(path, load_limit_s=0.01)


@pytest.mark.parametrize("name", ["context length 2^31", "tokens that are no UTF-8", "weights of nan"])
async def test_a_worker_with_such_a_file_ends_with_one_line_and_is_never_ready(
    nats_url: str, bus: Bus, tmp_path: Path, name: str
) -> None:
    path = (PROBED | LOADED)[name][0].write(tmp_path / "hostile.gguf")
    worker = WorkerProcess(
        tmp_path, nats_url, bus, f"hostile-{len(name)}", INFERFLUX_WORKER_MODEL_PATH=str(path)
    )
    seen: list[int] = []
    try:
        await worker.start()
        assert await worker.wait() == 2
        if worker.status is not None:
            seen.append(worker.status.state)
    finally:
        worker.kill()
    log = worker.log_path.read_text()
    assert log.splitlines()[-1].startswith(f"worker: {path}: ")
    assert "Traceback" not in log
    assert scheduler_pb2.WORKER_STATE_READY not in seen


SERVED: dict[str, Gguf] = {
    "as it should be": GOOD,
    "weights of zero": GOOD.filled(0.0),
    "odd merges": GOOD.having({f"{VOCABULARY}.merges": texts(["zz", "q q q", ""])}),
    "end token far away": GOOD.having({f"{VOCABULARY}.eos_token_id": u32(2**32 - 1)}),
    "a truth value of 77": GOOD.having({f"{VOCABULARY}.add_bos_token": boolean(77)}),
}


@pytest.mark.parametrize("name", SERVED)
async def test_a_worker_that_is_ready_really_serves(
    nats_url: str, bus: Bus, tmp_path: Path, name: str
) -> None:
    path = SERVED[name].write(tmp_path / "odd.gguf")
    variables = {"INFERFLUX_WORKER_MODEL_PATH": str(path), "INFERFLUX_WORKER_MODEL_NAME": "inferflux-demo"}
    worker = WorkerProcess(tmp_path, nats_url, bus, f"odd-{len(name)}", **variables)
    try:
        await worker.start_ready()
        request_id = f"odd-{len(name)}"
        stream = await worker.read(request_id)
        await worker.submit(batch_item(request_id, max_tokens=3))
        assert len(token_ids(await read_to_end(stream))) == 3
        stream.close()
    finally:
        worker.kill()


@pytest.mark.parametrize(
    ("template", "can_call_tools"),
    [
        (chat_templates.QWEN25, True),
        (chat_templates.CHATML, True),
        ("{{ messages[-1].role }}", False),
        ("{% if", False),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", False),
        ("{% set x = ['a' * 99999999] * 99 %}{{ x | join }}", False),
    ],
    ids=["tools", "no place for them", "no text", "broken", "endless", "huge"],
)
async def test_a_file_says_whether_requests_may_have_tools(
    tmp_path: Path, template: str, can_call_tools: bool
) -> None:
    made = Gguf({**GOOD.metadata, "tokenizer.chat_template": text(template)}, GOOD.tensors)
    path = tmp_path / "m.gguf"
    path.write_bytes(made.data())
    assert (await probe_model_file(path)).facts.can_call_tools is can_call_tools
