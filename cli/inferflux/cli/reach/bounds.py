"""Bounds of what commands take: beyond them no message holds it."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import IO, AnyStr, Final

from inferflux.api.channel_options import MAX_RECEIVE_BYTES

from .errors import CommandError

# Which values make sense is the gateway's to say.
INT32: Final = 2**31 - 1
UINT32: Final = 2**32 - 1
UINT64: Final = 2**64 - 1


def read_text(path: Path) -> str:
    """All of a file or pipe.

    Raises:
        OSError: it cannot be read, or has more characters than a message has bytes.
        UnicodeDecodeError: it is not UTF-8.
    """
    with path.open(encoding="utf-8") as file:
        return _read(file)


def read_bytes(path: Path) -> bytes:
    """All of a file or pipe.

    Raises:
        CommandError: it cannot be read, or has more bytes than a message; names the file.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def read_stdin() -> str:
    """All of standard input.

    Raises:
        CommandError: it has more characters than a message has bytes.
    """
    try:
        text: str = _read(sys.stdin)
    except OSError as error:
        raise CommandError(f"standard input cannot be read: {error.strerror}") from None
    return text


def _read(file: IO[AnyStr]) -> AnyStr:
    data = file.read(MAX_RECEIVE_BYTES + 1)
    if len(data) > MAX_RECEIVE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_RECEIVE_BYTES >> 20} MiB")
    return data
