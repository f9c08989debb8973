"""Images in an engine's steps, over a cache that checks every call: held, computed apart, shared whole."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from harness.kv_states import IDENTITY
from harness.worker import batch_item
from harness.worker_world import VOCABULARY, CheckingCache

from inferflux.common.contract.requests.images import image_id, placeholders
from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.kv.prefix_sharing import FULL, PrefixSharing, Sharing
from inferflux.worker.engine.media.images import Images
from inferflux.worker.engine.media.projector import EncodedRun
from inferflux.worker.engine.plan.planner import StepPlan
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

N = 16
BEFORE = list(range(1, 21))
AFTER = [21, 22]
ONE, TWO = image_id(b"one"), image_id(b"two")
CHECKPOINTS = PrefixSharing(Sharing.CHECKPOINTS, "a state")


class Encoder:
    has_plane = False
    is_whole = False

    def encode(self, image: engine_pb2.EngineImage) -> list[EncodedRun]:  # noqa: ARG002
        return [EncodedRun(np.zeros((N, 4), np.float32), N, is_whole=self.is_whole)]


class Cache(CheckingCache):
    """Notes what parts its steps had, as (position, tokens)."""

    parts: list[tuple[int, int]]

    def decode(self, plan: StepPlan, is_interrupted: Any) -> Any:
        self.parts += [(part.sequence.position, part.n) for part in plan.prefilling]
        return super().decode(plan, is_interrupted)


class World:
    def __init__(
        self, sharing: PrefixSharing = FULL, *, is_whole: bool = False, max_itl_factor: float = 100.0
    ) -> None:
        encoder = Encoder()
        encoder.is_whole = is_whole
        self.cache = Cache(
            cells=400,
            sequences=6,
            prefill_cells=0,
            sharing=sharing,
            next_token=lambda tokens: sum(tokens) % VOCABULARY,
        )
        self.cache.parts = []
        self.engine = Engine(
            self.cache,  # type: ignore[arg-type]
            worker_id="w",
            max_itl_factor=max_itl_factor,
            step_limit_s=10.0,
            tiers=Tiers(IDENTITY, host_bytes=0, is_divisible=sharing.is_divisible),
            images=Images(encoder, max_bytes=1 << 20),
        )
        self.wanted: list[str] = []

    def step(self) -> list[engine_pb2.EngineFinished]:
        self.engine.step()
        report = self.engine.take_report()
        if report is None:
            return []
        self.wanted += report.step.wanted_images
        self.chunks = [tokens_pb2.TokenChunk.FromString(e.chunk) for e in report.step.emissions]
        return list(report.step.finished)

    def finished(self) -> engine_pb2.EngineFinished:
        until = time.monotonic() + 10
        while not (ended := self.step()):
            assert time.monotonic() < until
        return ended[0]


def item(name: str, id_: str = ONE, *, ids: list[int] | None = None) -> worker_pb2.BatchItem:
    made = batch_item(name, prompt=[*BEFORE, *(ids or placeholders(id_, N)), *AFTER], max_tokens=3)
    image = generation_pb2.PromptImage(id=id_, object=f"of {id_[:4]}", position=len(BEFORE), tokens=N)
    made.request.images.append(image)
    return made


def given(id_: str = ONE) -> engine_pb2.EngineImage:
    return engine_pb2.EngineImage(object=f"of {id_[:4]}", width=1, height=1, rgb=b"abc")


def test_a_request_waits_for_its_image_while_others_run() -> None:
    world = World()
    world.engine.start(item("image"))
    other = batch_item("other", slot=1, prompt=[1, 2], max_tokens=3)
    world.engine.start(other)
    assert world.finished().key == "t.other"
    assert world.wanted == [f"of {ONE[:4]}"]
    world.engine.receive(given())
    assert world.finished().key == "t.image"


def test_a_part_of_a_step_is_of_tokens_or_of_one_image() -> None:
    world = World()
    world.engine.start(item("image"))
    world.engine.receive(given())
    world.finished()
    first, end = len(BEFORE), len(BEFORE) + N
    assert sum(n for _, n in world.cache.parts) == end + len(AFTER)
    for position, n in world.cache.parts:
        assert not position < first < position + n
        assert not position < end < position + n


@pytest.mark.parametrize("sharing", [FULL, CHECKPOINTS])
def test_a_prefix_that_ends_inside_an_image_is_not_shared(sharing: PrefixSharing) -> None:
    world = World(sharing)
    world.engine.start(item("first"))
    world.engine.receive(given())
    world.finished()
    # As if another image's hash began alike.
    alike = placeholders(ONE, N)[:5] + placeholders(TWO, N)[5:]
    world.engine.start(item("second", TWO, ids=alike))
    world.engine.receive(given(TWO))
    assert world.finished().cached_prompt_tokens == (len(BEFORE) if sharing is FULL else 0)
    world.engine.start(item("again"))
    assert world.finished().cached_prompt_tokens > len(BEFORE) + N - 1 or sharing is not FULL
    assert len(world.wanted) == 2


def test_an_image_that_cannot_be_had_fails_its_request_and_leaves_nothing() -> None:
    world = World()
    world.engine.start(item("image"))
    world.step()
    world.engine.receive(engine_pb2.EngineImage(object=f"of {ONE[:4]}", error="it is gone"))
    assert world.finished().outcome == "image_unavailable"
    assert world.cache.used == 0
    assert "it is gone" in world.chunks[-1].failed.message


def test_a_request_that_leaves_while_its_image_is_encoded_leaves_nothing() -> None:
    world = World()
    world.engine.start(item("image"))
    world.step()
    world.engine.cancel("t.image", is_silent=True)
    world.engine.receive(given())
    for _ in range(3):
        world.step()
    assert world.engine.idle_s() is None
    assert world.cache.used == 0


def test_embeddings_come_from_a_thread_of_their_own() -> None:
    begun: Future[None] = Future()
    may_end: Future[None] = Future()

    class Slow(Encoder):
        def encode(self, image: engine_pb2.EngineImage) -> list[EncodedRun]:
            begun.set_result(None)
            may_end.result(10)
            return super().encode(image)

    world = World()
    world.engine._images.images = Images(Slow(), max_bytes=1 << 20)
    world.engine.start(item("image"))
    world.engine.receive(given())
    begun.result(10)
    world.engine.start(batch_item("other", slot=1, prompt=[1, 2], max_tokens=3))
    assert world.finished().key == "t.other"
    may_end.set_result(None)
    assert world.finished().key == "t.image"


def test_an_image_whose_cells_look_at_each_other_is_one_part_of_a_step() -> None:
    world = World(is_whole=True, max_itl_factor=1.0)
    world.engine.start(item("image"))
    other = batch_item("other", slot=1, prompt=list(range(1, 9)), max_tokens=200)
    world.engine.start(other)
    world.engine.receive(given())
    assert world.finished().key == "t.image"
    assert (len(BEFORE), N) in world.cache.parts
