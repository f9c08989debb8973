"""Reading of llama.cpp's log of a model that it loads: the devices of layers, and the buffers it made (pure).

llama.cpp tells these nowhere else, so the module is pinned to the log text of the llama.cpp of
llama-cpp-python 0.3.36. The lines are those of its load_tensors, create_tensor, llama_kv_cache, sched_reserve
and resolve_fused_ops.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

_MIB = 1 << 20
_LAYER = re.compile(r"load_tensors: layer\s+(\d+) assigned to device (\S+),")
_OVERRIDE = re.compile(r"^tensor (blk\.(\d+)\.ffn_\S*exps\S*) .* buffer type overridden to (\S.*)")
_BUFFER = re.compile(r": +(\S.*?) +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")
_CONTEXT = re.compile(r"^llama_context: flash_attn +=")
_RESOLVED = re.compile(r"\bFlash Attention (enabled|not supported)")
_FORCED_OFF = re.compile(
    r"(flash_attn|flash attention).*(forcing off|requires)|disabling flash attention", re.IGNORECASE
)
_FORCED_ON = "enabling flash_attn since"


class LoadLog:
    """Lines are taken as they come.

    Attributes:
        layers: by the device's name; the output layer is one. device_of: the device's name, by layer.
        moved_experts: by layer and name, the buffer type of each tensor of experts that was overridden.
        weights, kv, compute: bytes by the name of the buffer type. Those of the latest context count.
        flash_attention: of the latest context, where llama.cpp chose; None where it did as it was told.
        flash_attention_reason: the line that says why there is none; empty otherwise.
    """

    def __init__(self) -> None:
        self.layers: Counter[str] = Counter()
        self.device_of: dict[int, str] = {}
        self.moved_experts: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self.weights: Counter[str] = Counter()
        self.kv: Counter[str] = Counter()
        self.compute: Counter[str] = Counter()
        self._output: Counter[str] = Counter()
        self.flash_attention: bool | None = None
        self.flash_attention_reason = ""

    def take(self, line: str) -> None:
        """One line of the log."""
        if found := _LAYER.search(line):
            self.layers[found[2]] += 1
            self.device_of[int(found[1])] = found[2]
        elif found := _OVERRIDE.search(line):
            self.moved_experts[int(found[2])][found[1]] = found[3].strip()
        elif found := _BUFFER.search(line):
            self._take_buffer(found[1], found[2], round(float(found[3]) * _MIB))
        elif _CONTEXT.search(line):
            self._begin_context()
        elif found := _RESOLVED.search(line):
            self.flash_attention = found[1] == "enabled"
            self.flash_attention_reason = "" if self.flash_attention else line.strip()
        elif _FORCED_ON in line:
            self.flash_attention, self.flash_attention_reason = True, ""
        elif _FORCED_OFF.search(line):
            self.flash_attention, self.flash_attention_reason = False, line.strip()

    def uses_flash_attention(self, asked: bool | None) -> bool:
        """True if the latest context has it: what was asked for, unless llama.cpp chose otherwise."""
        return bool(asked) if self.flash_attention is None else self.flash_attention

    def _begin_context(self) -> None:
        for counts in (self.kv, self.compute, self._output):
            counts.clear()

    def _take_buffer(self, name: str, kind: str, n_bytes: int) -> None:
        match kind:
            case "model":
                self.weights[name] += n_bytes
            case "compute":  # said again whenever a larger step is provided for
                self.compute[name] = n_bytes
            case "output":
                self._output[name] = n_bytes
            case _:
                self.kv[name] += n_bytes

    def compute_on(self, name: str) -> int:
        """Bytes that a step computes with, logits among them."""
        return self.compute[name] + self._output[name]
