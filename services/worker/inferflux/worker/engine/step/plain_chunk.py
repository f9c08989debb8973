"""The chunk that most steps give a sequence: one token and its text, nothing else."""

from __future__ import annotations

from inferflux.v1 import tokens_pb2


class PlainChunk:
    """Serializes such chunks. One message is filled again for each: a new one takes twice as long."""

    def __init__(self) -> None:
        self._chunk = tokens_pb2.TokenChunk(token_ids=[0])
        self._token_ids = self._chunk.token_ids

    def serialized(self, offset: int, token: int, text: str, sampled_unix_us: int) -> bytes:
        """Return the serialized bytes that follow a sequence's `chunk_head`."""
        chunk = self._chunk
        chunk.offset = offset
        self._token_ids[0] = token
        chunk.text = text
        chunk.sampled_unix_us = sampled_unix_us
        return chunk.SerializeToString()
