"""Requests with images on a real worker: read from the bucket, evicted, taken over, refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.projectors import IMAGE_TOKENS, audio_projector, tiny_projector
from harness.worker import WorkerProcess, batch_item, read_to_end, resume_item, token_ids

from inferflux.common.bus import Bus
from inferflux.common.contract.requests.images import Pixels, image_id, object_name, placeholders
from inferflux.common.contract.requests.sounds import Samples
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

StartWorker = Callable[..., Awaitable[WorkerProcess]]
_BEFORE = [10, 20, 30]
_AFTER = [40, 51]
_TOKENS = 40


@pytest.fixture
async def start_worker(nats_url: str, tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Starts workers with a projector, each by a name of its own."""
    bus = await Bus.connect(nats_url, name="image-tests")
    mmproj = tmp_path / "mmproj.gguf"
    mmproj.write_bytes(tiny_projector(256).data())
    started: list[WorkerProcess] = []

    async def start(name: str, **variables: str) -> WorkerProcess:
        given = {"INFERFLUX_WORKER_MMPROJ_PATH": str(mmproj)} | variables
        made = WorkerProcess(tmp_path, nats_url, bus, name, **given)
        started.append(made)
        await made.start_ready()
        return made

    yield start
    for made in started:
        made.kill()
    await bus.close()


async def stored(bus: Bus, shade: int) -> generation_pb2.PromptImage:
    """A grey image in the bucket, at its place in the prompt."""
    pixels = Pixels(32, 32, bytes([shade, 255 - shade, shade // 2]) * (32 * 32))
    id_ = image_id(pixels.rgb)
    name = object_name(id_, time.time())
    await bus.put_image(name, pixels.packed())
    return generation_pb2.PromptImage(id=id_, object=name, position=len(_BEFORE), tokens=IMAGE_TOKENS)


def item(
    request_id: str, image: generation_pb2.PromptImage, *, generated: list[int] | None = None, **given: Any
) -> worker_pb2.BatchItem:
    prompt = [*_BEFORE, *placeholders(image.id, IMAGE_TOKENS), *_AFTER]
    made = batch_item(request_id, prompt=prompt, generated=generated or (), max_tokens=_TOKENS, **given)
    made.request.images.append(image)
    return made


async def run(worker: WorkerProcess, wanted: worker_pb2.BatchItem) -> list[tokens_pb2.TokenChunk]:
    stream = await worker.read(wanted.request.request_id)
    answer = await worker.submit(wanted)
    assert not answer.refused, answer
    chunks = await read_to_end(stream)
    stream.close()
    return chunks


async def test_an_evicted_request_is_computed_again_and_another_worker_goes_on_with_it(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker(
        "images",
        INFERFLUX_WORKER_SLOTS="1",
        INFERFLUX_WORKER_SEQUENCES="1",
        INFERFLUX_WORKER_HOST_BYTES="0",
    )
    image = await stored(worker.bus, 200)
    alone = token_ids(await run(worker, item("alone", image)))
    assert len(alone) == _TOKENS
    stream = await worker.read("evicted")
    await worker.submit(item("evicted", image, token_budget=10))
    await worker.until(lambda: len(worker.yields("evicted")) == 1)
    await run(worker, batch_item("other", prompt=range(5, 60), max_tokens=4))
    await worker.until(lambda: worker.residence("evicted") == scheduler_pb2.RESIDENCE_SWAPPED)
    await worker.resume(resume_item("evicted"))
    assert token_ids(await read_to_end(stream)) == alone
    # What another worker has generated comes along; the image comes from the bucket.
    second = await start_worker("images-2")
    rest = await run(second, item("taken", image, generated=alone[:15], epoch=2))
    assert token_ids(rest) == alone[15:]


async def test_an_image_that_is_gone_and_pixels_that_are_none_fail_their_requests_alone(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("images-gone")
    image = await stored(worker.bus, 100)
    missing = generation_pb2.PromptImage()
    missing.CopyFrom(image)
    missing.id = image_id(b"never stored")
    missing.object = object_name(missing.id, time.time())
    failed = (await run(worker, item("gone", missing)))[-1].failed
    assert failed.reason == "IMAGE_UNAVAILABLE"
    damaged = generation_pb2.PromptImage()
    damaged.CopyFrom(image)
    damaged.id = image_id(b"damaged")
    damaged.object = object_name(damaged.id, time.time())
    await worker.bus.put_image(damaged.object, b"no pixels")
    failed = (await run(worker, item("damaged", damaged)))[-1].failed
    assert failed.reason == "IMAGE_UNAVAILABLE"
    assert (await run(worker, item("well", image)))[-1].HasField("finished")


async def test_what_does_not_agree_with_its_prompt_is_refused(start_worker: StartWorker) -> None:
    worker = await start_worker("images-odd")
    image = await stored(worker.bus, 50)
    other = item("other", image)
    other.request.images[0].id = image_id(b"other")
    no_image = item("none", image)
    del no_image.request.images[:]
    at_the_end = item("end", image)
    del at_the_end.request.prompt_token_ids[-len(_AFTER) :]
    for odd in (other, no_image, at_the_end):
        answer = await worker.submit(odd)
        assert [each.reason for each in answer.refused] == [worker_pb2.REFUSAL_REASON_INVALID], odd


async def test_a_worker_without_a_projector_refuses_images(start_worker: StartWorker) -> None:
    worker = await start_worker("images-none", INFERFLUX_WORKER_MMPROJ_PATH="")
    image = await stored(worker.bus, 50)
    answer = await worker.submit(item("refused", image))
    assert "no mmproj" in answer.refused[0].message


async def test_a_sound_is_read_from_the_bucket_as_an_image_is(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    mmproj = tmp_path / "audio.gguf"
    mmproj.write_bytes(audio_projector(256).data())
    worker = await start_worker("sounds", INFERFLUX_WORKER_MMPROJ_PATH=str(mmproj))
    assert worker.status is not None
    card = worker.status.models[0]
    assert (card.takes_images, card.takes_audio) == (False, True)
    sound = Samples(16000, np.sin(np.arange(16000) / 7).astype("<f4").tobytes())
    id_ = image_id(sound.pcm)
    run_ = generation_pb2.PromptImage(
        id=id_, object=object_name(id_, time.time()), position=len(_BEFORE), tokens=375
    )
    await worker.bus.put_image(run_.object, sound.packed())
    wanted = batch_item("sound", prompt=[*_BEFORE, *placeholders(id_, 375), *_AFTER], max_tokens=4)
    wanted.request.images.append(run_)
    chunks = await run(worker, wanted)
    assert chunks[-1].finished.usage.prompt_tokens == 375 + len(_BEFORE) + len(_AFTER)
