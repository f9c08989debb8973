"""Media markers: texts that stand for images while a chat template renders (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence


class ImageMarkers:
    """The markers of one prompt.

    Args:
        secret: letters and digits that no text has by chance, so that no message can spell a marker.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._pattern = re.compile(f"image{secret}x([0-9]+)x")
        self._n = 0

    def next(self) -> str:
        """The marker of the next image."""
        marker = f"image{self._secret}x{self._n}x"
        self._n += 1
        return marker

    def cut(self, parts: Sequence[str]) -> list[str | int] | None:
        """The parts of a rendered prompt cut at the markers, with the images' numbers in their place. None
        if the template has not kept each image once, in order."""
        cut: list[str | int] = []
        found: list[int] = []
        for part in parts:
            pieces = self._pattern.split(part)
            cut.append(pieces[0])
            for number, text in zip(pieces[1::2], pieces[2::2], strict=True):
                found.append(int(number))
                cut += [int(number), text]
        return cut if found == list(range(self._n)) else None
