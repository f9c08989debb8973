"""The engine process by itself."""

from __future__ import annotations

import os
from pathlib import Path

from harness.engine_process import engine
from harness.worker import DEMO_MODEL, batch_item

from inferflux.v1 import engine_pb2


def test_an_engine_ends_with_its_lifeline_though_its_channel_is_open() -> None:
    """Its parent may be killed where the kernel does not tell a child."""
    with engine() as one:
        assert one.ready.kv_cells == 512
        os.close(one.lifeline)
        assert one.process.wait(30) == 0


def test_an_engine_tells_of_every_context_whether_it_has_flash_attention() -> None:
    with engine(
        sequences=4,
        kv_cells=2048,
        batch_tokens=512,
        flash_attention=True,
        draft_model_path=str(DEMO_MODEL.with_name("inferflux-demo-draft.gguf")),
    ) as one:
        usual = {"main": True, "prefill": False, "draft": True}
        assert dict(one.ready.device_context.flash_attention_by_context) == usual
        item = batch_item("a", model="m", max_tokens=2)
        item.request.params.deterministic = True
        one.channel.send(engine_pb2.EngineCommand(start=item))
        told: dict[str, bool] = {}
        finished = False
        while not finished:
            step = one.channel.receive().step
            told.update(step.flash_attention_by_context)
            finished = bool(step.finished)
        assert told == usual | {"deterministic": True}
        os.close(one.lifeline)


def test_an_engine_whose_worker_is_gone_leaves_on_disk_what_a_request_has_computed(tmp_path: Path) -> None:
    with engine(disk_path=str(tmp_path), disk_bytes=1 << 30) as one:
        start = batch_item("a", model="m", prompt=list(range(300, 364)), max_tokens=400)
        one.channel.send(engine_pb2.EngineCommand(start=start))
        while not any(emission.generated_tokens for emission in one.channel.receive().step.emissions):
            pass
        one.socket.close()
        assert one.process.wait(30) == 0
        os.close(one.lifeline)
    assert len(list(tmp_path.glob("*/*.kv"))) == 1
