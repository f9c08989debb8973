"""Sounds that clients send: decoded and counted in a child process, stored in the bucket, refused by name."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from harness.gguf_files import DIM
from harness.memory_nats import MemoryNats
from harness.model_kinds import seeing_model
from harness.projectors import audio_projector, picture, tiny_projector, tone

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.sounds import unpacked_sound
from inferflux.gateway.images.decoding import ImageLimits
from inferflux.gateway.images.intake import ImageIntake
from inferflux.v1 import inference_pb2, model_pb2
from inferflux.worker.files.mmproj_file import read_projection

Message = inference_pb2.ChatMessage
CARD = model_pb2.ModelCard(name="m", digest="m", takes_audio=True, projector="p")
RATE = 16000


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    made = await MemoryNats().connect()
    await made.ensure_streams(StreamLimits())
    yield made
    await made.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What workers publish, by digest."""
    (tmp_path / "m").write_bytes(seeing_model().data())
    (tmp_path / "mmproj").write_bytes(audio_projector(DIM).data())
    (tmp_path / "p").write_bytes(read_projection(tmp_path / "mmproj", field="x").skeleton)
    return tmp_path


@pytest.fixture
def intake(bus: Bus, files: Path) -> ImageIntake:
    async def path(digest: str) -> Path:
        return files / digest

    return ImageIntake(bus, None, ImageLimits(sound_bytes=1_000_000, sound_s=35), file_path=path)


def message(*sounds: bytes, form: str = "wav", role: str = "user") -> Message:
    parts = [
        inference_pb2.ContentPart(audio=inference_pb2.AudioInput(data=sound, format=form)) for sound in sounds
    ]
    return Message(role=role, parts=parts)


async def test_a_sound_is_stored_as_samples_and_its_tokens_are_counted(bus: Bus, intake: ImageIntake) -> None:
    (short, long) = await intake.of([message(tone(1.5, rate=8000), tone(31))], CARD)
    sound = unpacked_sound(await bus.get_image(short.object))
    assert sound.rate == RATE
    assert abs(sound.count - 1.5 * RATE) < RATE / 10
    assert 0.3 < np.abs(np.frombuffer(sound.pcm, "<f4")).max() < 0.4
    assert [piece.cells for piece in short.pieces] == [375]
    assert [piece.cells for piece in long.pieces] == [375, 375]
    assert (await intake.of([message(tone(31))], CARD)) == [long]


def floats(value: float) -> bytes:
    """A WAV file whose samples are floats."""
    data = np.full(RATE, value, "<f4").tobytes()
    form = struct.pack("<IHHIIHH", 16, 3, 1, RATE, 4 * RATE, 4, 32)
    body = b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("sound", "said"),
    [
        (floats(np.nan), "no numbers"),
        (floats(-np.inf), "no numbers"),
        (floats(1e20), "1000 times full scale"),
        (b"no sound at all", "no WAV or MP3"),
        (picture(1), "no WAV or MP3"),
        (tone(1)[:30], "broken"),
        (b"ID3" + bytes(5000), "broken"),
        (tone(0), "broken|no samples"),
        (tone(1 / 16000), "just one"),
        (tone(2 / 48000, rate=48000), "just one"),
        (tone(36, rate=8000), "at most 35 s"),
        (bytes(1_000_001), "bytes"),
        (b"", "empty"),
    ],
)
async def test_a_sound_that_cannot_be_used_is_named_and_not_stored(
    intake: ImageIntake, sound: bytes, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        await intake.of([message(), message(sound)], CARD)
    assert (caught.value.field, caught.value.reason) == ("messages[1].parts[0].audio", "BAD_AUDIO")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (message(b"x", role="assistant"), "messages[0].parts[0].audio"),
        (message(b"x", form="flac"), "messages[0].parts[0].audio.format"),
    ],
)
async def test_messages_that_cannot_have_this_sound_are_refused(
    intake: ImageIntake, given: Message, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await intake.of([given], CARD)
    assert caught.value.field == field


async def test_a_model_whose_projector_takes_none_takes_no_sounds(intake: ImageIntake, files: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await intake.of([message(tone(1))], model_pb2.ModelCard(name="m", takes_images=True))
    assert caught.value.reason == "AUDIO_UNSUPPORTED"
    (files / "mmproj").write_bytes(tiny_projector(DIM).data())
    (files / "p").write_bytes(read_projection(files / "mmproj", field="x").skeleton)
    with pytest.raises(InvalidArgument, match="takes no sounds"):
        await intake.of([message(tone(1))], CARD)
