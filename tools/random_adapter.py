"""LoRA adapters of random weights, large enough that what a model says is another."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_CHANGED = ("attn_q.weight", "attn_v.weight", "ffn_down.weight")


def write_adapter(
    path: Path, model: Path, *, seed: int, rank: int = 4, strength: float = 1.0, alpha: float | None = None
) -> Path:
    """Write an adapter for the layers of `model`; returns its path.

    Args:
        strength: how large its changes are, compared with the weights of a layer of the same size.
    """
    rng = np.random.default_rng(seed)
    reader = gguf.GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank if alpha is None else alpha))
    for tensor in reader.tensors:
        if not tensor.name.endswith(_CHANGED):
            continue
        n_in, n_out = (int(n) for n in tensor.shape)
        a = rng.standard_normal((rank, n_in)).astype(np.float32) * np.float32(n_in**-0.5)
        b = rng.standard_normal((n_out, rank)).astype(np.float32) * np.float32(strength / np.sqrt(rank))
        writer.add_tensor(f"{tensor.name}.lora_a", a)
        writer.add_tensor(f"{tensor.name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
