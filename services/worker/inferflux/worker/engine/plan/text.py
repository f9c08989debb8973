"""Token bytes to text that may be shown: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextAssembler:
    """Turns the bytes of successive tokens into text, holding back what is not certain yet.

    Two things are held: the first bytes of a character whose rest is still to come, and text that
    may turn out to be the beginning of a stop string. Its state depends on the tokens alone, so
    replaying them into a new assembler continues the text exactly.

    Args:
        min_tokens: stop strings begin after as many tokens.
    """

    def __init__(self, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self._unstoppable = min_tokens
        # The stop string that ended the text.
        self.stop = ""

    @property
    def is_stopped(self) -> bool:
        return bool(self.stop)

    def push(self, piece: bytes) -> str:
        """Text that `piece` releases. Sets `stop` when a stop string is complete."""
        text = self._decoder.decode(piece)
        if self._unstoppable:
            self._unstoppable -= 1
            return text
        if not self._stop:
            return text
        return self._release(self._held + text)

    @property
    def held(self) -> str:
        """Return the text that `finish` would give now."""
        pending, _ = self._decoder.getstate()
        if self.is_stopped or not (pending or self._held):
            return ""
        text = self._held + pending.decode("utf-8", "replace")
        found, _ = _first_stop(text, self._stop)
        return text if found < 0 else text[:found]

    def finish(self) -> str:
        """Return the text that is still held when generation ends without a stop string."""
        rest = self._decoder.decode(b"", final=True)
        if self.is_stopped:
            return ""
        if not self._stop:
            return rest
        text = self._release(self._held + rest)
        if self.is_stopped:
            return text
        text += self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        found, stop = _first_stop(text, self._stop)
        if stop:
            self.stop = stop
            self._held = ""
            return text[:found]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _first_stop(text: str, stop: Sequence[str]) -> tuple[int, str]:
    """(where the first of the stop strings begins, that string); -1 without any."""
    return min(((at, s) for s in stop if (at := text.find(s)) >= 0), default=(-1, ""))


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
