"""Adapters in the engine: each answers as llama.cpp alone does with it, whatever runs beside it.

Cells lie in another order beside others, which changes the last bits of a logit. So each token is compared
with what llama.cpp says after the same tokens, with the adapter and with others.
"""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.serving import Served, load
from harness.worker import DEMO_MODEL, batch_item

from inferflux.common.llama.native import llama
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.engine.llama.batch import Batch
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.files.adapter_digest import digest_of
from tools.random_adapter import write_adapter

TEXT = "The fox ran to the river and the owl saw it. One day the owl said to the fox that"
N = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / f"{name}.gguf", DEMO_MODEL, seed=seed)
        for seed, name in enumerate("ab", start=1)
    }


@functools.cache
def demo(prefill_cells: int = 0) -> Backend:
    return load(prefill_cells=prefill_cells)


def adapter(path: Path, scale: float = 1.0) -> engine_pb2.EngineAdapter:
    return engine_pb2.EngineAdapter(digest=digest_of(path, scale), path=str(path), scale=scale)


class Adapted(Served):
    """An engine with these adapters, by name."""

    def __init__(self, files: dict[str, Path], backend: Backend | None = None) -> None:
        backend = backend or demo()
        backend._main.clear()
        for digest in list(backend._adapters):
            backend.free_adapter(digest)
        super().__init__(backend)
        self.digests = {"": ""}
        for name, path in files.items():
            wanted = adapter(path)
            assert self.engine.load_adapter_now(wanted).error == ""
            self.digests[name] = wanted.digest

    def item(self, name: str, adapter_name: str, *, text: str = TEXT, n: int = N) -> worker_pb2.BatchItem:
        made = batch_item(name, prompt=tokens_of(text), max_tokens=n)
        made.request.adapter = adapter_name
        made.request.adapter_digest = self.digests[adapter_name]
        return made


def tokens_of(text: str) -> list[int]:
    return demo().vocab.tokenize(text.encode(), add_special=False, parse_special=False)


# Two ways to compute a row of the demo model differ by up to this much in a logit: its matrices are Q8_0.
NEARLY = 0.5


@functools.cache
def bare(path: Path | None) -> tuple[Any, Any]:
    """llama.cpp's model and context with an adapter, and nothing of ours between."""
    model = llama.llama_model_load_from_file(str(DEMO_MODEL).encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = 1024
    params.n_threads = params.n_threads_batch = params.flash_attn_type = 1
    context = llama.llama_init_from_model(model, params)
    if path is not None:
        handle = llama.llama_adapter_lora_init(model, str(path).encode())
        assert handle
        handles, scales = (llama.llama_adapter_lora_p_ctypes * 1)(handle), (ctypes.c_float * 1)(1.0)
        assert llama.llama_set_adapters_lora(context, handles, 1, scales) == 0
    return model, context


def gap(path: Path | None, said: list[int], text: str = TEXT) -> float:
    """How far the tokens of an answer are from the likeliest ones, by llama.cpp alone with an adapter: the
    largest difference of two logits. 0 where it says the same greedily."""
    prompt = tokens_of(text)
    context = bare(path)[1]
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    batch = Batch(1024)
    tokens = np.array([*prompt, *said[:-1]], np.int32)
    batch.put(0, tokens, seq_id=0, position=0)
    batch.logits[: tokens.shape[0]] = 1
    assert llama.llama_decode(context, batch.struct(tokens.shape[0])) == 0
    size = demo().vocab.size
    logits = np.ctypeslib.as_array(llama.llama_get_logits(context), (tokens.shape[0], size))
    rows = logits[len(prompt) - 1 :]
    return float((rows.max(axis=1) - rows[np.arange(len(said)), said]).max())


def is_of(adapter_name: str, files: dict[str, Path], said: list[int], text: str = TEXT) -> bool:
    """Whether this is what llama.cpp says with this adapter, and with no other."""
    found = {name: gap(files.get(name), said, text) for name in ("", *files)}
    others = [each for name, each in found.items() if name != adapter_name]
    return found[adapter_name] < NEARLY and min(others) > 4 * NEARLY


def test_each_adapter_answers_as_llama_cpp_does_with_it_alone_and_in_one_load(
    files: dict[str, Path],
) -> None:
    for name in ("", "a", "b"):
        alone = Adapted(files)
        alone.run(alone.item("alone", name))
        assert is_of(name, files, alone.tokens["alone"])
    mixed = Adapted(files)
    mixed.run(mixed.item("x", "a"), mixed.item("y", "b"), mixed.item("z", ""), mixed.item("w", "a"))
    for request, name in (("x", "a"), ("y", "b"), ("z", ""), ("w", "a")):
        assert is_of(name, files, mixed.tokens[request])
    mixed.check_cells()


def test_no_adapter_begins_with_what_another_has_computed(files: dict[str, Path]) -> None:
    world = Adapted(files)
    for number, name in enumerate(["", "a", "b", "a", "b", ""]):
        world.run(world.item(f"r{number}", name))
        assert is_of(name, files, world.tokens[f"r{number}"])
        assert (world.cached[f"r{number}"] > 0) == (number >= 3)


def test_a_prompt_in_the_prefill_context_is_computed_with_its_adapter(files: dict[str, Path]) -> None:
    world = Adapted(files, demo(prefill_cells=2048))
    assert world.backend.prefill_cells
    text = " ".join([TEXT] * 24)
    world.run(world.item("x", "a", text=text), world.item("y", "b", text=text))
    assert is_of("a", files, world.tokens["x"], text)
    assert is_of("b", files, world.tokens["y"], text)


def test_a_request_whose_state_left_the_cache_goes_on_with_its_adapter(files: dict[str, Path]) -> None:
    world = Adapted(files)
    world.start_and_step(world.item("x", "a"), until_tokens=8)
    world.swap_out("t.x")
    world.start_and_step(world.item("y", "b"), until_tokens=4)
    world.finish("y")
    world.resume("t.x", 1)
    world.finish("x")
    assert is_of("a", files, world.tokens["x"])
    assert is_of("b", files, world.tokens["y"])


def test_an_adapter_is_loaded_while_a_request_runs_and_freed_when_its_last_has_ended(
    files: dict[str, Path],
) -> None:
    world = Adapted({"a": files["a"]})
    late = adapter(files["b"])
    world.digests["b"] = late.digest
    world.start_and_step(world.item("x", "a"), until_tokens=4)
    world.engine.load_adapter(late)
    second = world.item("y", "b")
    second.slot = 1
    world.engine.start(second)  # it waits for its adapter
    world.finish("y")
    world.engine.unload_adapter(late.digest)
    world.engine.unload_adapter(world.digests["a"])
    while world.engine.residents:
        world.step()
    while world.backend._adapters:
        world.engine.step()
    assert is_of("a", files, world.tokens["x"])
    assert is_of("b", files, world.tokens["y"])
    assert not world.engine._adapters.adapters.has(late.digest)


@pytest.mark.parametrize("name", ["changed", "missing"])
def test_a_file_that_is_another_by_now_is_refused_and_the_engine_goes_on(
    files: dict[str, Path], tmp_path: Path, name: str
) -> None:
    world = Adapted({"a": files["a"]})
    path = write_adapter(tmp_path / "c.gguf", DEMO_MODEL, seed=3)
    wanted = adapter(path)
    if name == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    else:
        path.unlink()
    world.digests["c"] = wanted.digest
    world.start_and_step(world.item("x", "a"), until_tokens=4)
    world.engine.load_adapter(wanted)
    waits = world.item("y", "c")
    waits.slot = 1
    world.engine.start(waits)
    world.finish("x")
    assert is_of("a", files, world.tokens["x"])
    failed = [chunk for chunk in world.chunks if chunk.request_id == "y"]
    assert [chunk.failed.reason for chunk in failed] == ["ADAPTER_NOT_LOADED"]


def test_another_scale_is_another_adapter(files: dict[str, Path]) -> None:
    world = Adapted(files)
    half = adapter(files["a"], scale=0.5)
    assert half.digest != world.digests["a"]
    assert world.engine.load_adapter_now(half).error == ""
    world.digests["half"] = half.digest
    world.run(world.item("x", "half"), world.item("y", "a"))
    assert world.tokens["x"] != world.tokens["y"]
    assert is_of("a", files, world.tokens["y"])
    assert math.isclose(half.scale, 0.5)
