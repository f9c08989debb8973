"""The example of a file of models can be read as it is, by workers and by gateways."""

from __future__ import annotations

from pathlib import Path

from inferflux.gateway.models.splits import read_splits
from inferflux.worker.host.models_config import read_models

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "config/inferflux.yaml"


def test_the_example_of_a_configuration_is_right() -> None:
    models = read_models(EXAMPLE)
    assert [path.resolve().parent for path, _ in models] == [ROOT / "models"] * 2
    assert all(path.exists() for path, _ in models)
    assert read_splits(EXAMPLE).is_alias("either")
