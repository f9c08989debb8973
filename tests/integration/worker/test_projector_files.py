"""Files of projectors are tried with their model in a process of its own, and refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness.gguf_files import DIM, Gguf, Tensor
from harness.model_kinds import seeing_model
from harness.projectors import (
    aborting_projector,
    deepseek_projector,
    hunyuan_projector,
    mixed_projector,
    plane_projector,
    tiny_projector,
)

from inferflux.common.contract.errors import InvalidArgument
from inferflux.worker.files.mmproj_file import Projection, probe_projection, read_projection

pytestmark = pytest.mark.long

_PLAIN, _IN_A_PLANE = "llama", "qwen2vl"


async def probed(
    folder: Path, projector: Gguf, architecture: str = _PLAIN, *, limit_s: float = 90.0
) -> Projection:
    path, model = folder / "mmproj.gguf", seeing_model(architecture).write(folder / "model.gguf")
    path.write_bytes(projector.data())
    return await probe_projection(path, model, most_whole=512, field="mmproj_path", limit_s=limit_s)


def infinite(model_width: int) -> Gguf:
    """Its embeddings are no numbers."""
    plain = tiny_projector(model_width)
    bias = Tensor(np.full(model_width, np.inf, np.float32))
    return replace(plain, tensors={**plain.tensors, "mm.2.bias": bias})


@pytest.mark.parametrize(
    ("make", "architecture"),
    [(tiny_projector, _PLAIN), (mixed_projector, _PLAIN), (plane_projector, _IN_A_PLANE)],
    ids=["images", "images and sounds", "in a plane"],
)
async def test_a_projector_that_can_be_used_is_what_its_file_says(
    tmp_path: Path, make: Callable[[int], Gguf], architecture: str
) -> None:
    found = await probed(tmp_path, make(DIM), architecture)
    assert found == read_projection(tmp_path / "mmproj.gguf", field="")


@pytest.mark.parametrize(
    ("make", "architecture", "said"),
    [
        (deepseek_projector, _PLAIN, "cells depend on what is before their image"),
        (deepseek_projector, _IN_A_PLANE, "cells depend on what is before their image"),
        (hunyuan_projector, _IN_A_PLANE, "positions of a kind that is not served"),
        (hunyuan_projector, _PLAIN, "libmtmd cannot use it: llama.cpp aborted"),
        (aborting_projector, _PLAIN, "libmtmd cannot use it: llama.cpp aborted"),
        (infinite, _PLAIN, "numbers that are not finite"),
        (lambda width: tiny_projector(width, kind="nonesuch"), _PLAIN, "unknown projector type: nonesuch"),
        (
            lambda width: tiny_projector(2 * width),
            _PLAIN,
            f"(n_embd = {DIM}) and mmproj (n_embd = {2 * DIM})",
        ),
    ],
    ids=[
        "DeepSeek-V4",
        "DeepSeek-V4 in a plane",
        "HunyuanVL",
        "HunyuanVL of a model without planes",
        "ends its process",
        "not finite",
        "unknown",
        "of another model",
    ],
)
async def test_a_projector_that_is_not_served_is_refused_by_what_it_is(
    tmp_path: Path, make: Callable[[int], Gguf], architecture: str, said: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await probed(tmp_path, make(DIM), architecture)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert (caught.value.field, caught.value.reason) == ("mmproj_path", "BAD_PROJECTOR")


async def test_a_trial_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="took over 0 s"):
        await probed(tmp_path, tiny_projector(DIM), limit_s=0.0)
