"""What a plan says of the CPU, beside what llama.cpp reports of the same model when it is loaded.

Weights and KV cache are the same but for what llama.cpp rounds: its log has hundredths of a MiB, and tensors
and buffers are aligned. What a step computes with is an upper bound: llama.cpp reuses memory of what is not
needed any more, so that it may take a fraction of it, and must not take more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.model_kinds import sliding_window_model
from harness.serving import load
from harness.worker import DEMO_MODEL

from inferflux.worker.files.device_plan import plan_devices
from inferflux.worker.files.kv_types import KvType, KvTypes
from inferflux.worker.files.model_file import read_model_file
from inferflux.worker.files.needs import PROCESS_BYTES, Asked
from tools.bench_model import parse, write

pytestmark = pytest.mark.long

MIB = 1 << 20
CELLS = 4096


@pytest.fixture(scope="module", params=[(), ("--untied",)], ids=["tied", "untied"])
def bench_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers of random weights in Q8_0."""
    path = tmp_path_factory.mktemp("bench") / "bench.gguf"
    shape = "--layers 3 --dim 768 --heads 12 --ff 2048 --vocab 32000 --quant Q8_0"
    write(parse([*shape.split(), "--out", str(path), *request.param]))
    return path


def check(path: Path, types: KvTypes, *, is_windowed: bool = False) -> None:
    file = read_model_file(path)
    asked = Asked(0, 4, kv_cells=CELLS, types=types)
    (planned,) = plan_devices(
        file.architecture, file.size_bytes, file.context_length, file.facts, asked, []
    ).devices
    backend = load(path, kv_cells=CELLS, prefill_cells=0, kv_type_k=types.keys, kv_type_v=types.values)
    (cpu,) = backend.device_context.devices
    assert backend.cells == CELLS
    assert planned.layers == cpu.layers == backend.device_context.layers
    assert abs(planned.weights - cpu.weights_bytes) <= max(MIB // 2, planned.weights // 100)
    assert planned.kv >= cpu.kv_bytes - MIB // 50
    if not is_windowed:
        assert planned.kv <= cpu.kv_bytes + MIB // 50
    assert 0 < cpu.compute_bytes <= planned.compute - PROCESS_BYTES


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_the_demo_model_takes_what_its_plan_says(kind: KvType) -> None:
    check(DEMO_MODEL, KvTypes(kind, kind))


def test_the_bench_model_takes_what_its_plan_says(bench_model: Path) -> None:
    check(bench_model, KvTypes())


def test_layers_with_a_window_take_no_more_than_their_plan_says(tmp_path: Path) -> None:
    path = tmp_path / "window.gguf"
    path.write_bytes(sliding_window_model().data())
    check(path, KvTypes(), is_windowed=True)
