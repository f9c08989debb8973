"""Reading of a model file before an engine loads it: the digest, and a tokenizer that works."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_sources import shards_of
from inferflux.common.process.child.captured import one_line

from .gguf_header import (
    HEADER,
    MAGIC,
    MAX_HEADER_BYTES,
    SPLIT,
    Array,
    Header,
    HeaderError,
    Kind,
    parse_header,
    strings_of,
)
from .model_checks import check_metadata, check_tokens
from .model_facts import ModelFacts, facts_of
from .probes import run_probe

PROBE_LIMIT_S = 60.0
_SIZE = struct.Struct("<Q")
# This many pages of the weights are part of the digest, at equal distances.
_SAMPLED_PAGES = 256
_PAGE_BYTES = 4096


class ModelFileError(Exception):
    """The file cannot be served; names the file and the cause in one line."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model on disk.

    Attributes:
        path: of several files the first one.
        digest: hex SHA-256 over metadata, tensor index, file size and some pages of the weights: tells
            models apart without reading all of them.
        context_length: tokens, as the file states it.
        tokenizer: a GGUF of the same metadata and no tensors, enough for a vocab-only load.
        facts: what else its head says.
    """

    path: Path
    digest: str
    size_bytes: int
    architecture: str
    name: str
    context_length: int
    tokenizer: bytes
    facts: ModelFacts = field(default_factory=ModelFacts)


async def probe_model_file(
    path: Path, *, chat_template: Path | None = None, limit_s: float = PROBE_LIMIT_S
) -> ModelFile:
    """Have a child process of bounded time and memory read the file and try its vocabulary.

    Args:
        chat_template: a file whose template takes the place of the model's own.

    Raises:
        ModelFileError: the file was refused, or the child ended over it.
    """
    try:
        given = [] if chat_template is None else [str(chat_template)]
        probed = await run_probe("model_probe", str(path), *given, limit_s=limit_s)
    except TimeoutError:
        raise ModelFileError(f"{path}: reading its header and vocabulary took over {limit_s:g} s") from None
    if probed.code != 0:
        raise ModelFileError(f"{path}: llama.cpp cannot use the vocabulary: {probed.why}")
    head, _, tokenizer = probed.printed.partition(b"\n")
    facts = json.loads(head)
    if "error" in facts:
        raise ModelFileError(one_line(facts["error"]))
    said = ModelFacts.from_json(facts.pop("facts"))
    return ModelFile(path=Path(facts.pop("path")), tokenizer=tokenizer, facts=said, **facts)


def read_model_file(path: Path) -> ModelFile:
    """Read and check the head of a GGUF file, in this process. Of a model in several files any may be named.

    Raises:
        ModelFileError: missing, not a GGUF, cut off, or a field that cannot be served.
    """
    place = path
    try:
        with _opened(path) as (file, view, size):
            header = parse_header(view)
            files = _files_of(path, header)
            if path != files[0] and header.metadata.get(f"{SPLIT}no"):
                return read_model_file(files[0])
            tokens = header.metadata.get("tokenizer.ggml.tokens")
            if isinstance(tokens, Array) and tokens.kind == Kind.STRING:
                check_tokens(strings_of(view, tokens))
            digest, whole = _digest(view, header, size, _weights_sample(file, size)), header
            for place in files[1:]:
                with _opened(place) as (part, part_view, part_size):
                    whole = parse_header(part_view, before=whole)
                    sample = _weights_sample(part, part_size)
                    digest.update(_digest(part_view, whole, part_size, sample).digest())
                    size += part_size
            place = path
            header = replace(header, n_tensors=whole.n_tensors, weights=whole.weights)
            check_metadata(view, header)
            return _model_file(path, view, header, size, digest.hexdigest())
    except (OSError, ValueError, HeaderError) as error:
        raise ModelFileError(f"{place}: {error}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, mmap.mmap, int]]:
    """A file, its head, and its size in bytes.

    Raises:
        ModelFileError: there is nothing to read.
    """
    if path.is_dir():
        raise ModelFileError(f"{path}: it is a folder: name the GGUF file in it")
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file")
    size = path.stat().st_size
    if not size:
        raise ModelFileError(f"{path}: the file is empty")
    length = min(size, MAX_HEADER_BYTES)
    with path.open("rb") as file, mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as view:
        yield file, view, size


def _files_of(path: Path, header: Header) -> list[Path]:
    """All files of the model of which `path` is one, the first one first.

    Raises:
        HeaderError: it is not called as one of several must be.
    """
    count = header.metadata.get(f"{SPLIT}count", 1)
    if not isinstance(count, int) or count <= 1:
        return [path]
    try:
        names = shards_of(path.name)
    except InvalidArgument as error:
        raise HeaderError(error.message) from None
    if len(names) != count:
        raise HeaderError(
            f"it is one of {count} files of a model: it must be called NAME-00001-of-{count:05d}.gguf, "
            "and the others alike"
        )
    return [path.with_name(name) for name in names]


def _digest(view: mmap.mmap, header: Header, size: int, sample: bytes) -> hashlib._Hash:
    return hashlib.sha256(view[: header.end] + _SIZE.pack(size) + sample)


def _weights_sample(file: BinaryIO, size: int) -> bytes:
    """Pages from the first to the last of a file of `size` bytes."""
    last = max(size - _PAGE_BYTES, 0)
    pages = []
    for i in range(_SAMPLED_PAGES):
        file.seek(i * last // (_SAMPLED_PAGES - 1))
        pages.append(file.read(_PAGE_BYTES))
    return b"".join(pages)


def _model_file(path: Path, view: mmap.mmap, header: Header, size: int, digest: str) -> ModelFile:
    metadata = header.metadata
    architecture = str(metadata["general.architecture"])
    context_length = metadata[f"{architecture}.context_length"]
    return ModelFile(
        path=path,
        digest=digest,
        size_bytes=size,
        architecture=architecture,
        name=str(metadata.get("general.name", "")),
        context_length=context_length if isinstance(context_length, int) else 0,
        tokenizer=_tokenizer(view, header),
        facts=facts_of(view, header),
    )


def _tokenizer(view: mmap.mmap, header: Header) -> bytes:
    """A GGUF of the same metadata and no tensors. It is whole: llama.cpp would look for the other files."""
    starts = [HEADER.size, *(end for _, end in header.split)]
    ends = [*(start for start, _ in header.split), header.metadata_end]
    kept = b"".join(view[start:end] for start, end in zip(starts, ends, strict=True))
    return HEADER.pack(MAGIC, header.version, 0, len(header.metadata) - len(header.split)) + kept
