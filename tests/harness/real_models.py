"""Trained models that `make models` fetches. Where one is not there, its tests are skipped, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferflux.cli.model_files.named import NAMED, fetched


def real_model(name: str) -> Path:
    """The file of `smollm2` or `gemma3`; skips the test where it was not fetched."""
    path = fetched(NAMED[name])
    if path is None:
        pytest.skip(f"{NAMED[name].title} is not here: make models")
    return path
