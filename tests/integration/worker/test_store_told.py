"""A model that is pulled before a worker starts: where it is, and how the container ends."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from harness.commands import outcome_of
from harness.model_paths import DEMO, model_path

from inferflux.common.process.settings import load
from inferflux.worker.settings import WorkerSettings

PATHS = {"INFERFLUX_WORKER_MODEL_PATH": "model.path", "INFERFLUX_WORKER_MMPROJ_PATH": "mmproj.path"}


async def pulled(source: str, folder: Path) -> int:
    """Status of a container that pulls `source` into the store of `folder`."""
    (folder / "told").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "inferflux.worker.store.local", source, str(folder / "told")]
    env = os.environ | {"INFERFLUX_MODELS_STORE": str(folder / "store")}
    status, _, _ = await outcome_of(command, env=env)
    return status


def settings_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    """Settings of the worker that starts after it."""
    with monkeypatch.context() as context:
        for variable, name in PATHS.items():
            context.setenv(f"{variable}_FILE", str(folder / "told" / name))
        return load(WorkerSettings)


async def test_a_worker_serves_what_was_pulled_before_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shutil.copy(model_path(DEMO), tmp_path / "chat.gguf")
    assert await pulled(f"file:{source}", tmp_path) == 0
    settings = settings_of(tmp_path, monkeypatch)
    assert settings.mmproj_path is None
    assert settings.model_path is not None
    assert settings.model_path.is_relative_to(tmp_path / "store")
    assert settings.model_path.read_bytes() == Path(source).read_bytes()
    Path(source).unlink()
    assert await pulled(f"file:{source}", tmp_path) == 0, "it is there already"
    assert settings_of(tmp_path, monkeypatch).model_path == settings.model_path


async def test_a_model_that_cannot_be_had_is_a_status_and_no_path_of_before(tmp_path: Path) -> None:
    assert await pulled(f"file:{model_path(DEMO)}", tmp_path) == 0
    assert await pulled("file:/no/such.gguf", tmp_path) == 1
    assert [*(tmp_path / "told").iterdir()] == []
