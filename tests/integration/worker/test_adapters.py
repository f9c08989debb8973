"""Adapters in the engine: each answers as llama.cpp alone does with it, whatever runs beside it.

On one thread a row has the same bits alone and beside others, so whole answers are compared.
"""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path

import numpy as np
import pytest
from harness.adapters import write_adapter
from harness.serving import Served, load
from harness.worker import DEMO_MODEL, batch_item

from inferflux.common.llama.native import llama
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.adapter_digest import digest_of
from inferflux.worker.engine.native import Backend

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
        # How a prompt is divided decides the last bits: every one is computed in one step.
        self.engine._budget.mixed = lambda *_, **__: 512  # type: ignore[method-assign]
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


def bare(prompt: list[int], path: Path | None, n: int = N) -> list[int]:
    """What llama.cpp says greedily after a prompt, with nothing of ours between."""
    model = llama.llama_model_load_from_file(str(DEMO_MODEL).encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.flash_attn_type, params.n_threads, params.n_threads_batch = 1024, 1, 1, 1
    context = llama.llama_init_from_model(model, params)
    if path is not None:
        handle = llama.llama_adapter_lora_init(model, str(path).encode())
        assert handle
        handles, scales = (llama.llama_adapter_lora_p_ctypes * 1)(handle), (ctypes.c_float * 1)(1.0)
        assert llama.llama_set_adapters_lora(context, handles, 1, scales) == 0
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    said: list[int] = []
    given = prompt
    for _ in range(n):
        array = (llama.llama_token * len(given))(*given)
        assert llama.llama_decode(context, llama.llama_batch_get_one(array, len(given))) == 0
        logits = llama.llama_get_logits_ith(context, -1)
        given = [int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())]
        said += given
    llama.llama_free(context)
    llama.llama_model_free(model)
    return said


@functools.cache
def expected(path: Path | None, text: str = TEXT) -> tuple[int, ...]:
    return tuple(bare(tokens_of(text), path))


def test_each_adapter_answers_as_llama_cpp_does_with_it_alone_and_in_one_load(
    files: dict[str, Path],
) -> None:
    wanted = {"": expected(None), "a": expected(files["a"]), "b": expected(files["b"])}
    assert len(set(wanted.values())) == len(wanted), "the adapters change nothing"
    for name, tokens in wanted.items():
        alone = Adapted(files)
        alone.run(alone.item("alone", name))
        assert tuple(alone.tokens["alone"]) == tokens
    mixed = Adapted(files)
    mixed.run(mixed.item("x", "a"), mixed.item("y", "b"), mixed.item("z", ""), mixed.item("w", "a"))
    assert {name: tuple(mixed.tokens[name]) for name in "xyzw"} == {
        "x": wanted["a"],
        "y": wanted["b"],
        "z": wanted[""],
        "w": wanted["a"],
    }
    mixed.check_cells()


def test_no_adapter_begins_with_what_another_has_computed(files: dict[str, Path]) -> None:
    repeated = {}
    for name in ("", "a", "b"):
        alone = Adapted(files)
        for number in range(2):
            alone.run(alone.item(f"r{number}", name))
        repeated[name] = alone.tokens["r1"]
    world = Adapted(files)
    for number, name in enumerate(["", "a", "b", "a", "b", ""]):
        world.run(world.item(f"r{number}", name))
        is_cached = number >= 3
        # What is computed after a cached prefix is computed in other steps: it is compared with its like.
        wanted = repeated[name] if is_cached else list(expected(files.get(name)))
        assert world.tokens[f"r{number}"] == wanted
        assert (world.cached[f"r{number}"] > 0) == is_cached


def test_a_prompt_in_the_prefill_context_is_computed_with_its_adapter(files: dict[str, Path]) -> None:
    text = " ".join([TEXT] * 24)
    alone = {}
    for name in "ab":
        world = Adapted(files, demo(prefill_cells=2048))
        assert world.backend.prefill_cells
        world.run(world.item("x", name, text=text, n=8))
        alone[name] = world.tokens["x"]
    assert alone["a"] != alone["b"]
    world = Adapted(files, demo(prefill_cells=2048))
    for name in "abab":
        world.engine._memory.prefixes.clear()
        world.run(world.item(name, name, text=text, n=8))
        assert world.tokens.pop(name) == alone[name]


def test_a_request_whose_state_left_the_cache_goes_on_with_its_adapter(files: dict[str, Path]) -> None:
    world = Adapted(files)
    world.start_and_step(world.item("x", "a"), until_tokens=8)
    world.swap_out("t.x")
    world.start_and_step(world.item("y", "b"), until_tokens=4)
    world.finish("y")
    world.resume("t.x", 1)
    world.finish("x")
    assert tuple(world.tokens["x"]) == expected(files["a"])
    assert tuple(world.tokens["y"]) == expected(files["b"])


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
    while world.engine._sequences:
        world.step()
    while world.backend._adapters:
        world.engine.step()
    assert tuple(world.tokens["x"]) == expected(files["a"])
    assert tuple(world.tokens["y"]) == expected(files["b"])
    assert not world.engine._adapters.has(late.digest)


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
    assert tuple(world.tokens["x"]) == expected(files["a"])
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
    assert tuple(world.tokens["y"]) == expected(files["a"])
    assert math.isclose(half.scale, 0.5)
