"""Tokenizer files, fetched from the object store once and kept on disk for the tokenizer processes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

from inferflux.common.contract.errors import DeadlineExceeded, NotFound, Unavailable
from inferflux.common.process.private_files import replacing, write_all

if TYPE_CHECKING:
    from inferflux.common.bus import Bus

_DIGEST = re.compile(r"[0-9a-zA-Z_-]{1,128}")


class TokenizerFiles:
    """A directory of tokenizer files, named by their model's digest.

    Args:
        directory: empty at first, of this process alone.
    """

    def __init__(self, bus: Bus, directory: Path) -> None:
        self._bus = bus
        self._directory = directory
        self._fetching = asyncio.Lock()

    async def path(self, digest: str) -> Path:
        """Where the tokenizer of a model lies.

        Raises:
            Unavailable: no worker has put it into the object store, or the store does not answer.
        """
        if _DIGEST.fullmatch(digest) is None:
            raise Unavailable("the model's digest is malformed", reason="NO_TOKENIZER", retry_delay_s=None)
        path = self._directory / f"{digest}.gguf"
        async with self._fetching:
            if not path.exists():
                await self._fetch(digest, path)
        return path

    async def _fetch(self, digest: str, path: Path) -> None:
        try:
            data = await self._bus.get_object(digest)
        except NotFound:
            message = "the model's tokenizer is not in the object store (yet)"
            raise Unavailable(message, reason="NO_TOKENIZER") from None
        except DeadlineExceeded as error:
            message = f"the object store does not answer: {error.message}"
            raise Unavailable(message, reason="NATS_UNAVAILABLE") from None
        await asyncio.to_thread(_write_whole, path, data)


def _write_whole(path: Path, data: bytes) -> None:
    """Write so that the file is there entirely or not at all."""
    with replacing(path) as file:
        write_all(file.fileno(), data)
