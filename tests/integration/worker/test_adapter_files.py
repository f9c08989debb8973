"""Odd and hostile adapter files: each is refused in one line that names the file and the cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from harness.gguf_files import tiny_model
from harness.worker import DEMO_MODEL

from inferflux.worker.files.adapter_digest import digest_of
from inferflux.worker.files.adapter_file import AdapterFileError, probe_adapter_file
from tools.random_adapter import write_adapter

QUERY = "blk.0.attn_q.weight"


async def probed(path: Path, scale: float = 1.0, model: Path = DEMO_MODEL) -> str:
    """Why a file is refused."""
    with pytest.raises(AdapterFileError) as refused:
        await probe_adapter_file("x", path, scale, model)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def written(
    path: Path,
    tensors: dict[str, np.ndarray],
    *,
    kind: str = "adapter",
    adapter_type: str = "lora",
    architecture: str = "llama",
    change: Callable[[gguf.GGUFWriter], None] = lambda _: None,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.add_string("adapter.type", adapter_type)
    change(writer)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shape() -> tuple[int, int]:
    """(inputs, outputs) of the tensor that is changed here."""
    found = next(t for t in gguf.GGUFReader(DEMO_MODEL).tensors if t.name == QUERY)
    return int(found.shape[0]), int(found.shape[1])


def pair(n_in: int, n_out: int, rank: int = 2, *, rank_b: int = 0) -> dict[str, np.ndarray]:
    return {
        f"{QUERY}.lora_a": np.ones((rank, n_in), np.float32),
        f"{QUERY}.lora_b": np.ones((n_out, rank_b or rank), np.float32),
    }


async def test_a_good_file_is_known_by_what_is_in_it_and_by_its_scale(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "good.gguf", DEMO_MODEL, seed=1)
    adapter = await probe_adapter_file("x", path, 2.0, DEMO_MODEL)
    assert (adapter.name, adapter.path, adapter.scale) == ("x", path, 2.0)
    assert adapter.digest == digest_of(path, 2.0) != digest_of(path, 1.0)
    assert adapter.size_bytes == path.stat().st_size


async def test_what_is_no_adapter_of_the_model_is_refused(tmp_path: Path) -> None:
    n_in, n_out = shape()
    whole = write_adapter(tmp_path / "good.gguf", DEMO_MODEL, seed=1).read_bytes()
    path = tmp_path / "bad.gguf"
    for content, why in (
        (b"", "empty"),
        (b"not a model" * 9, "not a GGUF file"),
        (whole[:100], "cut off"),
        (whole[: len(whole) // 2], "cut off"),
        (whole[:-1], "cut off"),
    ):
        path.write_bytes(content)
        said = await probed(path)
        assert str(path) in said
        assert why in said, said
    assert "no such file" in await probed(tmp_path / "nowhere.gguf")
    assert "general.type" in await probed(DEMO_MODEL)
    good = pair(n_in, n_out)
    lone = dict(list(good.items())[:1])
    other = {name.replace("blk.0", "blk.99"): values for name, values in good.items()}
    for number, (made, why) in enumerate(
        (
            (written(tmp_path / "kind", good, kind="model"), "general.type must be 'adapter'"),
            (written(tmp_path / "type", good, adapter_type="ia3"), "adapter.type must be 'lora'"),
            (written(tmp_path / "arch", good, architecture="gemma3"), "general.architecture"),
            (written(tmp_path / "none", {}), "0 tensors"),
            (written(tmp_path / "lone", lone), f"{QUERY}.lora_b is missing"),
            (written(tmp_path / "name", {QUERY: good[f"{QUERY}.lora_a"]}), "no part of a LoRA"),
            (written(tmp_path / "other", other), "the model has no tensor blk.99"),
            (written(tmp_path / "in", pair(n_in + 32, n_out)), "does not fit"),
            (written(tmp_path / "out", pair(n_in, n_out + 32)), "does not fit"),
            (written(tmp_path / "rank", pair(n_in, n_out, 2, rank_b=4)), "does not fit"),
            (
                written(
                    tmp_path / "alora",
                    good,
                    change=lambda w: w.add_array("adapter.alora.invocation_tokens", [1, 2]),
                ),
                "adapters that begin at a token",
            ),
            (
                written(tmp_path / "alpha", good, change=lambda w: w.add_string("adapter.lora.alpha", "1")),
                "adapter.lora.alpha",
            ),
        )
    ):
        said = await probed(made)
        assert why in said, (number, said)


async def test_weights_of_a_type_that_ends_llama_cpp_are_refused(tmp_path: Path) -> None:
    tensors = {name: values.astype(np.float64) for name, values in pair(*shape()).items()}
    assert "it must be F32" in await probed(written(tmp_path / "x.gguf", tensors))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
async def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float, kind: type) -> None:
    tensors: dict[str, np.ndarray] = {name: values.astype(kind) for name, values in pair(*shape()).items()}
    tensors[f"{QUERY}.lora_b"][-1, -1] = value
    assert "not finite" in await probed(written(tmp_path / "x.gguf", tensors))


async def test_what_makes_the_model_overflow_is_refused(tmp_path: Path) -> None:
    tensors = {name: values * np.float32(3e37) for name, values in pair(*shape()).items()}
    assert "finite logits" in await probed(written(tmp_path / "x.gguf", tensors))


async def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    tiny = tiny_model().write(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "good.gguf", DEMO_MODEL, seed=1)
    assert "fit" in await probed(path, model=tiny) or "has no tensor" in await probed(path, model=tiny)
