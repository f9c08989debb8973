"""Reading of an adapter's file before an engine loads it: its digest, and whether it fits."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inferflux.common.process.child.captured import one_line
from inferflux.v1 import engine_pb2, model_pb2

from .adapter_checks import Weights, check_adapter, weights_of
from .adapter_digest import digest_of
from .gguf_header import MAX_HEADER_BYTES, Buffer, Header, HeaderError, parse_header
from .probes import run_probe

PROBE_LIMIT_S = 60.0
# Numbers that are looked at at a time.
_CHUNK = 1 << 20
_Q8_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", 32)])


class AdapterFileError(Exception):
    """The file cannot be an adapter of the model; names the file and the cause in one line."""


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter on disk, as it is applied.

    Attributes:
        digest: hex SHA-256 over the file and its scale.
    """

    name: str
    path: Path
    scale: float
    digest: str
    size_bytes: int

    def to_card(self) -> model_pb2.AdapterCard:
        return model_pb2.AdapterCard(
            name=self.name, digest=self.digest, scale=self.scale, size_bytes=self.size_bytes
        )

    def to_engine(self) -> engine_pb2.EngineAdapter:
        return engine_pb2.EngineAdapter(digest=self.digest, path=str(self.path), scale=self.scale)


async def probe_adapter_file(
    name: str, path: Path, scale: float, model: Path, *, limit_s: float = PROBE_LIMIT_S
) -> AdapterFile:
    """Have a child process of bounded time and memory read the file, and compute some tokens with it.

    Raises:
        AdapterFileError: the file was refused, or the child ended over it.
    """
    try:
        probed = await run_probe("adapter_probe", str(path), repr(scale), str(model), limit_s=limit_s)
    except TimeoutError:
        raise AdapterFileError(f"{path}: trying it with the model took over {limit_s:g} s") from None
    if probed.code != 0:
        raise AdapterFileError(f"{path}: llama.cpp cannot use it: {probed.why}")
    facts = json.loads(probed.printed)
    if "error" in facts:
        raise AdapterFileError(one_line(facts["error"]))
    return AdapterFile(name, path, scale, facts["digest"], facts["size_bytes"])


def read_adapter_file(path: Path, scale: float, model: Path) -> tuple[str, int]:
    """Read and check an adapter's file beside its model's, in this process.

    Returns:
        Its digest, and how many bytes it has.

    Raises:
        AdapterFileError: missing, not a GGUF, cut off, of another model, or not finite.
    """
    try:
        if not path.is_file():
            raise AdapterFileError(f"{path}: there is no such file")
        size = path.stat().st_size
        if not size:
            raise AdapterFileError(f"{path}: the file is empty")
        of_model = _header_of(model)
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as view:
            header = parse_header(view, keep_tensors=True)
            check_adapter(header, size, of_model)
            _check_finite(view, header)
        return digest_of(path, scale), size
    except (OSError, ValueError, HeaderError) as error:
        raise AdapterFileError(f"{path}: {error}") from None


def _header_of(model: Path) -> Header:
    length = min(model.stat().st_size, MAX_HEADER_BYTES)
    with model.open("rb") as file, mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as view:
        return parse_header(view, keep_tensors=True)


def _check_finite(view: Buffer, header: Header) -> None:
    """Raises HeaderError for weights that are infinite or no numbers: they would spread to other requests."""
    for weights in weights_of(header):
        for values in _values(view, weights):
            if not np.isfinite(values).all():
                raise HeaderError(f"tensor {weights.name} has weights that are not finite")


def _values(view: Buffer, weights: Weights) -> list[np.ndarray]:
    """Return the numbers of a tensor's weights that could be infinite."""
    data = np.frombuffer(view[weights.start : weights.start + weights.n_bytes], np.uint8)
    if weights.kind == 8:
        return [data.view(_Q8_BLOCK)["scale"]]
    if weights.kind == 30:  # the upper half of a float
        wide = data.view("<u2").astype("<u4") << 16
        return [part.view("<f4") for part in np.array_split(wide, 1 + wide.size // _CHUNK)]
    kind = "<f4" if weights.kind == 0 else "<f2"
    return np.array_split(data.view(kind), 1 + weights.n_bytes // (4 * _CHUNK))
