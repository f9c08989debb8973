"""Reading of a projector's file before an engine loads it, and the part of it that gateways need."""

from __future__ import annotations

import hashlib
import json
import mmap
import signal
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.child.captured import one_line

from .gguf_header import HEADER, MAGIC, MAX_HEADER_BYTES, Header, HeaderError, parse_header
from .probes import run_probe

PROBE_LIMIT_S = 90.0
_ARCHITECTURE = "clip"
_BLOCK_BYTES = 1 << 20
_DEFAULT_ALIGNMENT = 32
_MOST_ALIGNMENT = 1 << 16
_F32 = 0


@dataclass(frozen=True, slots=True)
class Projection:
    """A projector on disk, a GGUF that llama.cpp calls mmproj.

    Attributes:
        digest: hex SHA-256 of the file.
        takes_images, takes_audio: as its head says.
        skeleton: what `skeleton_of` made of it.
    """

    path: Path
    digest: str
    size_bytes: int
    skeleton: bytes = b""
    takes_images: bool = True
    takes_audio: bool = False


def read_projection(path: Path, *, field: str, digest: str = "") -> Projection:
    """Read a projector's file. Whether it suits the model, the engine finds out.

    Args:
        digest: hex SHA-256 of the file, where it is known; else all of it is read.

    Raises:
        InvalidArgument: it cannot be read, or is no projector; names `field`.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if not size:
                raise InvalidArgument(f"{path}: the file is empty", field=field)
            length = min(size, MAX_HEADER_BYTES)
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as view:
                header = parse_header(view, keep_tensors=True)
                if header.metadata.get("general.architecture") != _ARCHITECTURE:
                    raise InvalidArgument(f"{path}: it is no projector (mmproj)", field=field)
                skeleton = skeleton_of(header, view[HEADER.size : header.metadata_end])
            digest = digest or _digest_of(file)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror or error}", field=field) from None
    except (ValueError, HeaderError) as error:
        raise InvalidArgument(f"{path}: {error}", field=field) from None
    takes_audio = header.metadata.get("clip.has_audio_encoder") is True
    takes_images = not takes_audio or header.metadata.get("clip.has_vision_encoder") is True
    return Projection(path, digest, size, skeleton, takes_images, takes_audio)


def _digest_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


async def probe_projection(
    path: Path, model: Path, *, most_whole: int, field: str, limit_s: float = PROBE_LIMIT_S
) -> Projection:
    """Have a child process of bounded time and memory read a projector, and try it with its model.

    Args:
        most_whole: cells that one step may compute where they look at each other.

    Raises:
        InvalidArgument: the file was refused, or the child ended over it; names `field`.
    """
    try:
        probed = await run_probe("mmproj_probe", str(path), str(model), str(most_whole), limit_s=limit_s)
    except TimeoutError:
        raise _bad(f"{path}: trying it with the model took over {limit_s:g} s", field) from None
    head, _, rest = probed.printed.partition(b"\n")
    # The probe ends itself so where encoding takes long: the engine tries it once more.
    if probed.code not in (0, -signal.SIGALRM) or not head:
        raise _bad(f"{path}: libmtmd cannot use it: {probed.why}", field)
    return _projection(path, json.loads(head), rest, field)


def _projection(path: Path, found: dict[str, Any], rest: bytes, field: str) -> Projection:
    """Return the projection that a probe has printed."""
    skeleton_bytes = int(found.get("skeleton_bytes", 0))
    skeleton, encoding = rest[:skeleton_bytes], rest[skeleton_bytes:]
    error = json.loads(encoding)["error"] if encoding else found.get("error")
    if error is not None:
        raise _bad(one_line(error), field)
    return Projection(
        path, found["digest"], found["size_bytes"], skeleton, found["takes_images"], found["takes_audio"]
    )


def _bad(why: str, field: str) -> InvalidArgument:
    return InvalidArgument(why, field=field, reason="BAD_PROJECTOR")


def skeleton_of(header: Header, metadata: bytes) -> bytes:
    """A projector with the metadata and the tensors' names of another, and one number in each tensor (pure).

    libmtmd counts the tokens of an image with it as with the whole file: it needs the metadata, and whether
    some tensors are there. It can encode nothing.

    Args:
        header: of the whole file, with its tensors.
        metadata: as it lies in the file.
    """
    alignment = header.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= _MOST_ALIGNMENT:
        raise HeaderError(f"general.alignment is {alignment}")
    index = bytearray()
    for number, name in enumerate(header.tensors):
        spelled = name.encode()
        index += struct.pack("<Q", len(spelled)) + spelled
        index += struct.pack("<IQIQ", 1, 1, _F32, number * alignment)
    head = HEADER.pack(MAGIC, header.version, len(header.tensors), len(header.metadata)) + metadata + index
    return head + bytes(-len(head) % alignment + len(header.tensors) * alignment)
