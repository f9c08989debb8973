"""Images that clients send: fetched, decoded in a child process, stored in the bucket, refused by name."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import pytest
from harness.memory_nats import MemoryNats
from harness.projectors import picture
from PIL import Image

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.images import MAX_SIDE, image_id, unpacked
from inferflux.common.http.http_client import HttpClient
from inferflux.gateway.images.decoding import ImageLimits
from inferflux.gateway.images.intake import ImageIntake
from inferflux.v1 import inference_pb2, model_pb2

Message = inference_pb2.ChatMessage
CARD = model_pb2.ModelCard(name="m", takes_images=True, projector="p")


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    made = await MemoryNats().connect()
    await made.ensure_streams(StreamLimits())
    yield made
    await made.close()


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    yield client
    await client.aclose()


def message(*images: bytes | str, role: str = "user", detail: str = "") -> Message:
    parts = []
    for image in images:
        given = inference_pb2.ImageInput(detail=detail)
        if isinstance(image, str):
            given.url = image
        else:
            given.data = image
        parts.append(inference_pb2.ContentPart(image=given))
    return Message(role=role, parts=parts)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_an_image_is_stored_as_pixels_under_its_hash(bus: Bus, http: HttpClient, form: str) -> None:
    file = picture(1, width=80, height=60, form=form)
    (image,) = await ImageIntake(bus, http, ImageLimits()).of([message(file)], CARD)
    assert image.id == image_id(file)
    pixels = unpacked(await bus.get_image(image.object))
    assert (pixels.width, pixels.height, len(pixels.rgb)) == (80, 60, 80 * 60 * 3)
    assert (image.width, image.height) == (80, 60)


async def test_a_large_image_is_scaled_down(bus: Bus, http: HttpClient) -> None:
    file = picture(1, width=4000, height=1000)
    (image,) = await ImageIntake(bus, http, ImageLimits()).of([message(file)], CARD)
    pixels = unpacked(await bus.get_image(image.object))
    assert (pixels.width, pixels.height) == (MAX_SIDE, MAX_SIDE // 4)


async def test_what_is_transparent_is_white(bus: Bus, http: HttpClient) -> None:
    out = io.BytesIO()
    Image.new("RGBA", (20, 20), (255, 0, 0, 0)).save(out, "PNG")
    (image,) = await ImageIntake(bus, http, ImageLimits()).of([message(out.getvalue())], CARD)
    assert set(unpacked(await bus.get_image(image.object)).rgb) == {255}


def bitmap() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (20, 20)).save(out, "BMP")
    return out.getvalue()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"no image at all", "no PNG, JPEG, WebP or GIF"),
        (bitmap(), "no PNG, JPEG, WebP or GIF"),
        (picture(1)[:200], "broken"),
        (picture(1, width=1001, height=1000), "pixels"),
        (bytes(2_000_001), "bytes"),
        (b"", "empty"),
        ("data:text/plain;base64,AAAA", "data URL"),
        ("data:image/png;base64,!!!!", "base64"),
        ("http://127.0.0.1:1/x.png", "connected to"),
        ("https://169.254.169.254/latest", "connected to"),
        ("file:///etc/passwd", "begins with https"),
    ],
)
async def test_an_image_that_cannot_be_used_is_named_and_not_stored(
    bus: Bus, http: HttpClient, given: bytes | str, said: str
) -> None:
    intake = ImageIntake(bus, http, ImageLimits(file_bytes=2_000_000, pixels=1_000_000))
    with pytest.raises(InvalidArgument, match=said) as caught:
        await intake.of([message(), message(given)], CARD)
    assert caught.value.field == "messages[1].parts[0].image"
    assert caught.value.reason == "BAD_IMAGE"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([message(b"x", role="system")], "messages[0].parts[0].image"),
        ([message(b"x", detail="huge")], "messages[0].parts[0].image.detail"),
        (
            [Message(role="user", content="a", parts=message(b"x").parts)],
            "messages[0].parts",
        ),
        (
            [Message(role="user", parts=[inference_pb2.ContentPart()])],
            "messages[0].parts[0]",
        ),
        ([message(b"x", b"y", b"z")], "messages[0].parts[2].image"),
    ],
)
async def test_messages_that_cannot_have_these_images_are_refused(
    bus: Bus, http: HttpClient, messages: list[Message], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await ImageIntake(bus, http, ImageLimits(count=2)).of(messages, CARD)
    assert caught.value.field == field


async def test_a_model_without_a_projector_takes_no_images(bus: Bus, http: HttpClient) -> None:
    with pytest.raises(InvalidArgument, match="no mmproj") as caught:
        await ImageIntake(bus, http, ImageLimits()).of([message(b"x")], model_pb2.ModelCard(name="m"))
    assert caught.value.reason == "IMAGES_UNSUPPORTED"
