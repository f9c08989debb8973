"""Markers that stand for images while a template renders."""

from __future__ import annotations

from inferflux.gateway.tokenizer.image_markers import ImageMarkers


def test_a_prompt_is_cut_where_its_images_are() -> None:
    markers = ImageMarkers("abc")
    first, second = markers.next(), markers.next()
    assert markers.cut([f"a{first}b", f"c{second}"]) == ["a", 0, "b", "c", 1, ""]


def test_a_prompt_without_images_stays_as_it_is() -> None:
    assert ImageMarkers("abc").cut(["a", "imageabx0x"]) == ["a", "imageabx0x"]


def test_images_that_are_left_out_repeated_or_moved_are_seen() -> None:
    markers = ImageMarkers("abc")
    first, second = markers.next(), markers.next()
    for text in (first, first + first + second, second + first, ""):
        assert markers.cut([text]) is None


def test_a_marker_that_a_message_guessed_is_seen() -> None:
    assert ImageMarkers("abc").cut(["imageabcx0x"]) is None
