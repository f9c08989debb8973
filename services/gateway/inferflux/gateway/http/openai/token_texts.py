"""Tokens as texts: parts of a character have a name, and each token a place in its text. Pure."""

from __future__ import annotations

from inferflux.v1 import tokens_pb2


def bytes_of(token: tokens_pb2.TokenLogprob) -> bytes:
    return token.piece or token.text.encode()


def name_of(token: tokens_pb2.TokenLogprob) -> str:
    """The token's text; of one that is no whole characters its bytes, as OpenAI's API spells them."""
    if not token.piece:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.piece)


def _is_inner(byte: int) -> bool:
    """Return whether a byte of UTF-8 goes on with a character."""
    return byte & 0xC0 == 0x80


class TextOffsets:
    """Where tokens begin in a text, in characters. A token that begins inside of one begins where that does.

    Args:
        echo: what the text begins with, where the tokens do, too.
    """

    def __init__(self, echo: str = "") -> None:
        self._echo = echo.encode()
        self._at = 0
        self._characters = 0

    def skip(self, text: str) -> None:
        """A part of the text has no tokens here."""
        self._characters += len(text)

    def next(self, piece: bytes) -> int:
        """Where the next token begins."""
        begins_inside = bool(piece) and _is_inner(piece[0])
        offset = self._characters - (begins_inside and self._characters > 0)
        self._characters += sum(not _is_inner(byte) for byte in piece)
        return offset

    def next_of_echo(self, piece: bytes) -> int:
        """The same of a prompt's token. One that the prompt's text does not have, as it may be with the
        first, takes no room; and the blank that some vocabularies put before the first word is not there."""
        rest = self._echo[self._at : self._at + len(piece)]
        if rest != piece:
            piece = piece[1:] if piece[:1] == b" " and rest.startswith(piece[1:]) else b""
        self._at += len(piece)
        return self.next(piece)
