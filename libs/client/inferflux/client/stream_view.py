"""View of a stream of either client: its request's id, text, tokens and end."""

from __future__ import annotations

from typing import Protocol

from inferflux.api.errors import InferFluxError
from inferflux.api.finish_reasons import name_of
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from .following import Following


class Response(Protocol):
    @property
    def chunk(self) -> tokens_pb2.TokenChunk: ...


class StreamView:
    """The request behind a stream, and what has come of its answer.

    Attributes:
        token_ids: the tokens that have come.
        delta: content, reasoning and calls of the last chunk: in a chat with tools, of a model that reasons.
        finished: the end with reason, usage and timings; None until it has come.
    """

    def __init__(self, following: Following) -> None:
        self._following = following
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.delta: inference_pb2.ChatDelta | None = None
        self.finished: tokens_pb2.Finished | None = None

    @property
    def request_id(self) -> str:
        """Id of the request; a request that is sent anew has another one, unless the caller gave it."""
        return self._following.request_id

    @property
    def resumes(self) -> int:
        """Number of times that the stream was lost and resumed."""
        return self._following.resumes

    @property
    def usage(self) -> generation_pb2.Usage | None:
        """Tokens of prompt and answer; None until the end has come."""
        return self.finished.usage if self.finished is not None else None

    @property
    def finish_reason(self) -> str:
        """stop, length, cancelled, content_filter or schema_mismatch; empty until the end has come."""
        return "" if self.finished is None else name_of(self.finished.reason)

    def _chunk_of(self, response: Response) -> tokens_pb2.TokenChunk:
        """The chunk of a response, beside which a chat's has a delta."""
        self.delta = None
        if isinstance(response, inference_pb2.ChatResponse | inference_pb2.ResumeResponse):
            self.delta = response.delta if response.HasField("delta") else None
        return response.chunk

    def _noted(self, error: InferFluxError) -> InferFluxError:
        """An error that ends a stream whose request could not be cancelled: it says so."""
        error.add_note(
            f"the request {self.request_id} could not be cancelled: it may go on for"
            f" {self._following.window_s} s"
        )
        return error

    def _take(self, chunk: tokens_pb2.TokenChunk) -> bool:
        """True if a chunk is to be passed on; the chunk is cut to what is new."""
        if not self._following.take(chunk):
            return False
        self._texts.append(chunk.text)
        self.token_ids.extend(chunk.token_ids)
        if chunk.HasField("finished"):
            self.finished = chunk.finished
        return True
