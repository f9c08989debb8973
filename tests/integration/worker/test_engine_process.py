"""The engine process by itself."""

from __future__ import annotations

import os
from pathlib import Path

from harness.engine_process import engine
from harness.worker import batch_item

from inferflux.v1 import engine_pb2


def test_an_engine_ends_with_its_lifeline_though_its_channel_is_open() -> None:
    """Its parent may be killed where the kernel does not tell a child."""
    with engine() as one:
        assert one.ready.kv_cells == 512
        os.close(one.lifeline)
        assert one.process.wait(30) == 0


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
