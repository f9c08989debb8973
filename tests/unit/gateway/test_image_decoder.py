"""Every mode of PNG, JPEG, WebP and GIF becomes the pixels that are seen."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from inferflux.common.contract.requests.images import MAX_SIDE, unpacked
from inferflux.gateway.images.decoder import decode

_SIDE = 32
_GREY = np.add.outer(np.arange(_SIDE) * 5, np.arange(_SIDE) * 3).astype(np.uint8)
_COLOURS = np.dstack([_GREY, np.roll(_GREY, 7), _GREY.T]).astype(np.uint8)
_CLEAR = np.tile(np.linspace(0, 255, _SIDE).astype(np.uint8), (_SIDE, 1))


def _png(rows: NDArray[np.generic], bits: int, kind: int, *, clear: int | None = None) -> bytes:
    """A PNG by the letter of its specification, since no library writes all of its modes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, bits, kind, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    trns = b"" if clear is None else chunk(b"tRNS", struct.pack(">H", clear))
    parts = (chunk(b"IHDR", head), trns, chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _wide(values: NDArray[np.uint8]) -> NDArray[np.uint16]:
    wide: NDArray[np.uint16] = (values.astype(np.uint16) * 257).astype(">u2")
    return wide


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _shown(data: bytes) -> NDArray[np.int64]:
    pixels = unpacked(decode(data, most_pixels=1 << 24))
    return np.frombuffer(pixels.rgb, np.uint8).reshape(pixels.height, pixels.width, 3).astype(np.int64)


def _on_white(colours: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> NDArray[np.float64]:
    part = alpha[..., None] / 255
    whole: NDArray[np.float64] = colours * part + 255 * (1 - part)
    return whole


_GREY3 = np.dstack([_GREY] * 3)
_EXACT = {
    "grey 8": (_png(_GREY, 8, 0), _GREY3),
    "grey 16": (_png(_wide(_GREY), 16, 0), _GREY3),
    "grey 16, one value clear": (
        _png(_wide(_GREY), 16, 0, clear=int(_GREY[3, 3]) * 257),
        np.where(_GREY[3, 3] == _GREY3, 255, _GREY3),
    ),
    "grey 8 and alpha": (_png(np.dstack([_GREY, _CLEAR]), 8, 4), _on_white(_GREY3, _CLEAR)),
    "grey 16 and alpha": (_png(_wide(np.dstack([_GREY, _CLEAR])), 16, 4), _on_white(_GREY3, _CLEAR)),
    "colours 8": (_png(_COLOURS, 8, 2), _COLOURS),
    "colours 16": (_png(_wide(_COLOURS), 16, 2), _COLOURS),
    "colours 8 and alpha": (_png(np.dstack([_COLOURS, _CLEAR]), 8, 6), _on_white(_COLOURS, _CLEAR)),
    "colours 16 and alpha": (_png(_wide(np.dstack([_COLOURS, _CLEAR])), 16, 6), _on_white(_COLOURS, _CLEAR)),
    "two levels": (_saved(Image.fromarray(_GREY > 99), "PNG"), np.where(_GREY3 > 99, 255, 0)),
    "WebP without loss": (_saved(Image.fromarray(_COLOURS), "WEBP", lossless=True), _COLOURS),
    "a palette": (_saved(Image.fromarray(_GREY).convert("P"), "GIF"), _GREY3),
}


@pytest.mark.parametrize("name", _EXACT)
def test_a_mode_is_read_as_it_is_seen(name: str) -> None:
    data, expected = _EXACT[name]
    assert np.abs(_shown(data) - expected).max() <= 1


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_jpeg_of_any_mode_is_near_what_was_saved(mode: str) -> None:
    smooth = np.dstack([_CLEAR, _CLEAR.T, np.full_like(_CLEAR, 90)])
    image = Image.fromarray(smooth).convert(mode)
    expected = np.asarray(image.convert("RGB")).astype(np.int64)
    assert np.abs(_shown(_saved(image, "JPEG", quality=98, subsampling=0)) - expected).max() <= 8


def test_colours_of_a_palette_are_mixed_when_an_image_is_scaled_down() -> None:
    stripes = np.zeros((2 * MAX_SIDE, 2 * MAX_SIDE), np.uint8)
    stripes[:, ::2] = 255
    data = _saved(Image.fromarray(stripes).convert("P"), "PNG")
    assert 100 < _shown(data).mean() < 155
    assert _shown(data).std() < 20


@pytest.mark.parametrize(("width", "height"), [(1, 2000), (2000, 1), (1, 1)])
def test_an_image_of_one_pixel_s_breadth_keeps_it(width: int, height: int) -> None:
    shown = _shown(_saved(Image.new("I;16", (width, height), 40_000), "PNG"))
    assert shown.shape == (min(height, MAX_SIDE), min(width, MAX_SIDE), 3)
    assert np.all(shown == round(40_000 / 257))
