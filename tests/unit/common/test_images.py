"""Placeholders of images among token ids, and pixels on their way."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.images import (
    FIRST_PLACEHOLDER,
    Pixels,
    check_images,
    image_id,
    object_name,
    placeholders,
    unpacked,
    without_placeholders,
)
from inferflux.v1 import generation_pb2

ONE, TWO = image_id(b"one"), image_id(b"two")
N = 16


def image(id_: str = ONE, *, position: int = 2, tokens: int = N, part: int = 0) -> generation_pb2.PromptImage:
    name = object_name(id_, 1e9)
    return generation_pb2.PromptImage(id=id_, object=name, position=position, tokens=tokens, part=part)


def prompt(*ids: str) -> list[int]:
    found = [1, 5]
    for id_ in ids:
        found += [*placeholders(id_, N), 7]
    return found


def test_placeholders_are_no_tokens_and_differ_by_image() -> None:
    one, two = placeholders(ONE, N), placeholders(TWO, N)
    assert one == placeholders(ONE, N)
    assert not set(one) & set(two)
    assert not set(one) & set(placeholders(ONE, N, 1))
    assert all(FIRST_PLACEHOLDER <= token < 2**31 for token in one + two)
    assert without_placeholders(prompt(ONE)) == [1, 5, 7]


def test_what_is_stored_later_has_another_name() -> None:
    assert object_name(ONE, 0) == object_name(ONE, 1799) != object_name(ONE, 1800)


def test_images_at_their_places_pass() -> None:
    check_images([image(), image(TWO, position=2 + N + 1)], prompt(ONE, TWO))


@pytest.mark.parametrize(
    ("images", "ids"),
    [
        ([image(position=1)], prompt(ONE)),
        ([image(TWO)], prompt(ONE)),
        ([image(tokens=N - 1), image(tokens=N)], prompt(ONE)),
        ([image(), image()], prompt(ONE)),
        ([image()], prompt(ONE)[:-1]),
        ([image(tokens=1)], prompt(ONE)),
        ([image(position=2**31)], prompt(ONE)),
        ([generation_pb2.PromptImage(id="x", object="y", position=2, tokens=N)], prompt(ONE)),
        ([image() for _ in range(1025)], prompt(ONE)),
        ([image(part=1)], prompt(ONE)),
    ],
)
def test_images_that_are_not_there_are_refused(
    images: list[generation_pb2.PromptImage], ids: list[int]
) -> None:
    with pytest.raises(InvalidArgument):
        check_images(images, ids)


def test_an_image_that_ends_the_prompt_is_refused_as_such() -> None:
    with pytest.raises(InvalidArgument, match=r"images\[0\] is the last of the prompt"):
        check_images([image()], prompt(ONE)[:-1])


def test_pixels_come_back_as_they_were() -> None:
    pixels = Pixels(3, 2, bytes(range(18)))
    assert unpacked(pixels.packed()) == pixels


@pytest.mark.parametrize(
    "data",
    [b"", b"short", Pixels(3, 2, bytes(17)).packed(), Pixels(0, 2, b"").packed(), b"x" * 40],
)
def test_what_are_no_pixels_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        unpacked(data)
