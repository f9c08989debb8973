"""What a worker learns of a model file before an engine loads it: the digest, and a tokenizer that works."""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from inferflux.common.captured import one_line

from .gguf_header import (
    HEADER,
    MAGIC,
    MAX_HEADER_BYTES,
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
    return ModelFile(path=path, tokenizer=tokenizer, facts=said, **facts)


def read_model_file(path: Path) -> ModelFile:
    """Read and check the head of a GGUF file, in this process.

    Raises:
        ModelFileError: missing, not a GGUF, cut off, or a field that cannot be served.
    """
    try:
        if path.is_dir():
            raise ModelFileError(f"{path}: it is a folder: name the GGUF file in it")
        if not path.is_file():
            raise ModelFileError(f"{path}: there is no such file")
        size = path.stat().st_size
        if not size:
            raise ModelFileError(f"{path}: the file is empty")
        length = min(size, MAX_HEADER_BYTES)
        with path.open("rb") as file, mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as view:
            header = parse_header(view)
            check_metadata(view, header)
            tokens = header.metadata.get("tokenizer.ggml.tokens")
            if isinstance(tokens, Array) and tokens.kind == Kind.STRING:
                check_tokens(strings_of(view, tokens))
            return _model_file(path, view, header, size, _weights_sample(file, size))
    except (OSError, ValueError, HeaderError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def _weights_sample(file: BinaryIO, size: int) -> bytes:
    """Pages from the first to the last of a file of `size` bytes."""
    last = max(size - _PAGE_BYTES, 0)
    pages = []
    for i in range(_SAMPLED_PAGES):
        file.seek(i * last // (_SAMPLED_PAGES - 1))
        pages.append(file.read(_PAGE_BYTES))
    return b"".join(pages)


def _model_file(path: Path, view: mmap.mmap, header: Header, size: int, sample: bytes) -> ModelFile:
    metadata = header.metadata
    architecture = str(metadata["general.architecture"])
    context_length = metadata[f"{architecture}.context_length"]
    return ModelFile(
        path=path,
        digest=hashlib.sha256(view[: header.end] + _SIZE.pack(size) + sample).hexdigest(),
        size_bytes=size,
        architecture=architecture,
        name=str(metadata.get("general.name", "")),
        context_length=context_length if isinstance(context_length, int) else 0,
        tokenizer=HEADER.pack(MAGIC, header.version, 0, len(metadata))
        + view[HEADER.size : header.metadata_end],
        facts=facts_of(view, header),
    )
