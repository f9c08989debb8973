"""What a worker learns of a projector's file before an engine loads it."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferflux.common.errors import InvalidArgument
from inferflux.common.images import FEWEST_TOKENS, MOST_TOKENS

from .gguf_header import MAX_HEADER_BYTES, HeaderError, Value, parse_header

_ARCHITECTURE = "clip"
# LLaVA's kind of projector: an image has as many tokens as it has patches, and none beside them.
_PLAIN = "mlp"
_TILES = "clip.vision.image_grid_pinpoints"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Projection:
    """A projector on disk, a GGUF that llama.cpp calls mmproj.

    Attributes:
        digest: hex SHA-256 of the file.
        image_tokens: of each image, where its head says that; 0 where only libmtmd knows.
    """

    path: Path
    digest: str
    size_bytes: int
    image_tokens: int = 0


def read_projection(path: Path, *, field: str) -> Projection:
    """Read a projector's file. Whether it suits the model, the engine finds out.

    Raises:
        InvalidArgument: it cannot be read, or is no projector; names `field`.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = min(size, MAX_HEADER_BYTES)
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as view:
                metadata = parse_header(view).metadata
            if metadata.get("general.architecture") != _ARCHITECTURE:
                raise InvalidArgument(f"{path}: it is no projector (mmproj)", field=field)
            digest = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except (OSError, ValueError, HeaderError) as error:
        raise InvalidArgument(f"{path}: {error}", field=field) from None
    return Projection(path, digest.hexdigest(), size, tokens_of(metadata))


def tokens_of(metadata: Mapping[str, Value]) -> int:
    """How many tokens an image has, by the head of a projector's file; 0 where it does not say (pure)."""
    side, patch = metadata.get("clip.vision.image_size"), metadata.get("clip.vision.patch_size")
    kinds = (metadata.get("clip.projector_type"), metadata.get("clip.vision.projector_type"))
    if _PLAIN not in kinds or _TILES in metadata or not isinstance(side, int) or not isinstance(patch, int):
        return 0
    tokens = (side // patch) ** 2 if patch > 0 else 0
    return tokens if FEWEST_TOKENS <= tokens <= MOST_TOKENS else 0
