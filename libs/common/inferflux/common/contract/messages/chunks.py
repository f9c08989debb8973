"""Check of a token chunk, for every service that reads a token stream. Pure."""

from __future__ import annotations

from inferflux.common.contract import checks
from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.answer_format import check_format
from inferflux.common.contract.requests.embedding_limits import MAX_JOB_TEXTS
from inferflux.v1 import generation_pb2, tokens_pb2

_REASONS = frozenset(generation_pb2.FinishReason.values()) - {generation_pb2.FINISH_REASON_UNSPECIFIED}


def parse_chunk(data: bytes) -> tokens_pb2.TokenChunk:
    """Decode a chunk, and check that it can be part of a token stream: any client may have published it.

    Raises:
        InvalidArgument: it is no chunk, or a field is out of its range.
    """
    chunk = checks.decode(tokens_pb2.TokenChunk, data)
    if chunk.epoch > MAX_EPOCH:
        raise InvalidArgument(f"epoch {chunk.epoch} is above {MAX_EPOCH}", field="epoch")
    if chunk.offset > checks.MAX_TOKENS:
        raise InvalidArgument(f"offset {chunk.offset} is above {checks.MAX_TOKENS}", field="offset")
    if chunk.HasField("answer_format"):
        check_format(chunk.answer_format, "answer_format")
    checks.check_count(chunk.vectors.values, MAX_JOB_TEXTS, "vectors.values")
    if chunk.HasField("finished") and chunk.finished.reason not in _REASONS:
        raise InvalidArgument(f"unknown reason {chunk.finished.reason}", field="finished.reason")
    return chunk
