"""Models that tests run on: the demo model, and SmolLM2 where `make models` has fetched it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferflux.cli.model_files.named import SMOLLM2 as FETCHED
from inferflux.cli.model_files.named import fetched

DEMO, SMOLLM2 = "demo", FETCHED.name
NAMES = (DEMO, SMOLLM2)
_DEMO_MODEL = Path(__file__).parents[2] / "models" / "inferflux-demo.gguf"


def model_path(name: str) -> Path:
    """The file of a model; skips the test where that of the real one is not."""
    if name == DEMO:
        return _DEMO_MODEL
    path = fetched(FETCHED)
    if path is None:
        pytest.skip(f"{FETCHED.title} is not here: `make models` fetches it")
    return path
