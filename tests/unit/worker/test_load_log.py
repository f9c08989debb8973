"""What llama.cpp's log says of a model that it loads."""

from __future__ import annotations

import pytest

from inferflux.worker.engine.llama.pinned_load_log import LoadLog

MIB = 1 << 20
_SPLIT = """load_tensors: layer   0 assigned to device RPC0, is_swa = 0
load_tensors: layer   1 assigned to device RPC1, is_swa = 0
load_tensors: layer   2 assigned to device RPC1, is_swa = 0
load_tensors: offloaded 3/3 layers to GPU
load_tensors:   CPU_Mapped model buffer size =     0.50 MiB
load_tensors: RPC0[127.0.0.1:50901] model buffer size =     1.75 MiB
load_tensors: RPC0[127.0.0.1:50902] model buffer size =     1.25 MiB
llama_context: flash_attn            = enabled
llama_context:        CPU  output buffer size =     0.25 MiB
llama_kv_cache: RPC0[127.0.0.1:50901] KV buffer size =     3.00 MiB
llama_kv_cache: RPC0[127.0.0.1:50902] KV buffer size =     2.00 MiB
sched_reserve: RPC0[127.0.0.1:50901] compute buffer size =    14.00 MiB
sched_reserve:        CPU compute buffer size =    10.50 MiB
"""


def read(text: str) -> LoadLog:
    log = LoadLog()
    for line in text.splitlines(keepends=True):
        log.take(line)
    return log


def test_layers_and_buffers_are_read_by_device() -> None:
    log = read(_SPLIT)
    assert log.layers == {"RPC0": 1, "RPC1": 2}
    assert log.weights["CPU_Mapped"] == MIB // 2
    assert log.weights["RPC0[127.0.0.1:50901]"] == 7 * MIB // 4
    assert log.kv == {"RPC0[127.0.0.1:50901]": 3 * MIB, "RPC0[127.0.0.1:50902]": 2 * MIB}
    assert log.compute_on("CPU") == 10 * MIB + 3 * MIB // 4
    assert log.compute_on("RPC0[127.0.0.1:50901]") == 14 * MIB
    assert log.flash_attention is None


def test_experts_that_were_overridden_are_read_by_layer() -> None:
    log = read(
        _SPLIT
        + """tensor blk.1.ffn_up_exps.weight (12 MiB q4_K) buffer type overridden to CPU
tensor blk.1.ffn_gate_up_exps.bias (0 MiB f32) buffer type overridden to RPC0[127.0.0.1:50901]
tensor blk.2.ffn_up.weight (12 MiB q4_K) buffer type overridden to CPU
"""
    )
    assert log.device_of == {0: "RPC0", 1: "RPC1", 2: "RPC1"}
    assert log.moved_experts == {
        1: {
            "blk.1.ffn_up_exps.weight": "CPU",
            "blk.1.ffn_gate_up_exps.bias": "RPC0[127.0.0.1:50901]",
        }
    }


def test_the_latest_context_counts_and_its_caches_add_up() -> None:
    later = """llama_context: flash_attn            = auto
llama_kv_cache:        CPU KV buffer size =     4.00 MiB
llama_kv_cache:        CPU KV buffer size =     1.00 MiB
llama_memory_recurrent:        CPU RS buffer size =     2.00 MiB
sched_reserve:        CPU compute buffer size =     8.00 MiB
sched_reserve:        CPU compute buffer size =     9.00 MiB
"""
    log = read(_SPLIT + later)
    assert log.kv == {"CPU": 7 * MIB}
    assert log.compute_on("CPU") == 9 * MIB
    assert log.layers.total() == 3


@pytest.mark.parametrize(
    ("line", "is_on"),
    [
        ("resolve_fused_ops: Flash Attention enabled", True),
        ("resolve_fused_ops: Flash Attention not supported, set to disabled", False),
        ("llama_init: flash_attn is not compatible with Grok - forcing off", False),
        ("llama_init: enabling flash_attn since it is required for quantized V cache", True),
        ("llama_context: flash_attn            = auto", None),
        ("flash_attn_ext: something else", None),
    ],
)
def test_what_llama_cpp_chose_is_read(line: str, is_on: bool | None) -> None:
    log = read(line)
    assert log.flash_attention is is_on
    assert bool(log.flash_attention_reason) is (is_on is False)


@pytest.mark.parametrize("line", ["", "\n", "model buffer size = x MiB", ": CPU model buffer size = MiB"])
def test_other_lines_are_left_alone(line: str) -> None:
    log = read(line)
    assert not log.weights
    assert not log.kv
