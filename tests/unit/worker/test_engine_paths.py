"""An engine's report of the ways to compute that it found to work."""

from __future__ import annotations

import pytest

from inferflux.v1 import device_pb2, engine_pb2, scheduler_pb2
from inferflux.worker.engine.step.engine_paths import paths_of


def test_each_way_is_on_or_off_with_its_reason() -> None:
    ready = engine_pb2.EngineReady(
        prefill_context_error="no memory",
        prefix_sharing=scheduler_pb2.PREFIX_SHARING_WINDOW,
        prefix_sharing_reason="é" * 300,
        device_context=device_pb2.DeviceContext(flash_attention=True),
    )
    found = {path.name: (path.is_on, path.reason) for path in paths_of(ready)}
    assert found == {
        "flash_attention": (True, ""),
        "prefill_context": (False, "no memory"),
        "prefix_sharing": (True, "é" * 128),
        "constraints": (True, ""),
        "speculation": (True, ""),
    }


@pytest.mark.parametrize("why", ["", "layers of the model are on a GPU"])
def test_a_model_whose_requests_are_deterministic_says_whether_they_can_be(why: str) -> None:
    found = {path.name: path for path in paths_of(engine_pb2.EngineReady(deterministic_error=why))}
    assert (found["deterministic"].is_on, found["deterministic"].reason) == (not why, why)
