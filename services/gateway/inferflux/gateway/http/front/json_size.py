"""How much work a JSON text makes, told before it is parsed. Pure.

A parser keeps the loop until it has read all of a text, and a text of small values takes it 50 times as long
as one text of the same size. So values and names are counted as the bytes arrive.
"""

from __future__ import annotations

from inferflux.gateway.http.errors.errors import BodyTooLarge

MAX_VALUES = 1 << 18
# Names cost more. 10,000 messages have about 40,000.
MAX_NAMES = 1 << 16
# A shorter text cannot have too many of either: a value takes two bytes, a name with its value five.
COUNTED_FROM_BYTES = 5 * MAX_NAMES


class JsonSize:
    """Counts what is outside of strings, over the pieces of one text.

    Attributes:
        values: at least as many as the text has; an empty array or object counts twice.
        names: names of the members of objects.
    """

    def __init__(self) -> None:
        self.values = 1
        self.names = 0
        self._is_in_string = False
        # A backslash whose other half is in the next piece.
        self._held = b""

    def feed(self, piece: bytes) -> None:
        """Count the next piece.

        Raises:
            BodyTooLarge: there are too many values or names.
        """
        text = (self._held + piece).replace(b"\\\\", b"")
        self._held = text[-1:] if text.endswith(b"\\") else b""
        parts = text.replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._is_in_string :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        self.values += sum(map(outside.count, (b",", b"[", b"{")))
        self.names += outside.count(b":")
        if self.values > MAX_VALUES or self.names > MAX_NAMES:
            message = f"the body has more than {MAX_VALUES} values or {MAX_NAMES} names"
            raise BodyTooLarge(message, reason="BODY_TOO_COMPLEX")


def check_json_size(text: bytes) -> None:
    """Check a whole text at once.

    Raises:
        BodyTooLarge: it has too many values or names.
    """
    if len(text) > COUNTED_FROM_BYTES:
        JsonSize().feed(text)
