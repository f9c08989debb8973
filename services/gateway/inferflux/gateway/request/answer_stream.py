"""The chunks of one request on their way to its client, from whatever source they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self

from inferflux.common.bus import TokenSubscription
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, from_failed
from inferflux.common.process import logs
from inferflux.gateway.answers.cache import Query
from inferflux.gateway.answers.replaying import StoredChunks
from inferflux.gateway.stream.chunk_guard import ChunkGuard
from inferflux.gateway.stream.reader import Reader
from inferflux.gateway.stream.relay import Relay, TokenSource
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from .account import FILTERED, Account
from .call import Call
from .chat_reader import ChatReader, Rest
from .services import Services

log = logs.get()

_COMPLETE = frozenset(
    {
        generation_pb2.FINISH_REASON_STOP,
        generation_pb2.FINISH_REASON_LENGTH,
        generation_pb2.FINISH_REASON_SCHEMA_MISMATCH,
    }
)

# Time for the terminal chunk of a request that was cancelled because its reader left.
_LAST_CHUNK_S = 5.0


class AnswerStream:
    """An iterator of chunks. Its end is noted for the account before the client is told.

    Attributes:
        guard: None where the answer is held to no guardrails.
        query: of a request whose answer may be kept.
        is_unconfirmed: whether only its chunks can tell that there is a job.
        is_cached: whether the answer is from the cache, without a job.
    """

    def __init__(self, call: Call, services: Services, account: Account, reader: Reader) -> None:
        self.guard: ChunkGuard | None = None
        self.query: Query | None = None
        self.is_unconfirmed = self.is_cached = False
        self._call = call
        self._services = services
        self._account = account
        self._reader = reader
        self._source: TokenSubscription | None = None
        self._relay: Relay | None = None
        self._failure: InferFluxError | None = None
        # Tells calls and reasoning from content; None where all of the text is content.
        self._chat: ChatReader | None = None
        # Of a stream that was resumed.
        self._rest: Rest | None = None
        # Whether the client has been given the end of its stream.
        self._is_told_end = False
        # Tokens the client says it has.
        self._offset = 0

    async def subscribe(self) -> None:
        """Receive chunks from now on."""
        self._source = await self._services.tokens.open(self._call.subject)

    def begin(self, form: generation_pb2.AnswerFormat | None) -> Relay:
        """Start at the first token.

        Args:
            form: how the answer is read; None where all of it is content.
        """
        if form is not None:
            self._chat = ChatReader(form)
        return self._start(self._subscribed(), offset=0)

    def begin_cached(self, messages: Sequence[bytes], form: generation_pb2.AnswerFormat | None) -> None:
        """Start with a complete answer, encoded chunks of the cache."""
        self.is_cached = True
        if form is not None:
            self._chat = ChatReader(form)
        self._start(StoredChunks(messages), offset=0)

    def resume(self, offset: int, *, is_read_whole: bool) -> Relay:
        """Start after the first `offset` tokens, which the client has.

        Args:
            is_read_whole: the reader of the answer's format needs the earlier chunks too.
        """
        self._offset = offset
        self._rest = Rest(offset)
        return self._start(self._subscribed(), offset=0 if is_read_whole else offset)

    def attach(self) -> Relay:
        """Give the answer of the same call, sent before. Its first chunk has its format."""
        self._rest, self._chat, self.query = Rest(0), None, None
        return self._begun()

    def _begun(self) -> Relay:
        if self._relay is None:
            raise RuntimeError("neither submitted nor resumed")
        return self._relay

    def _subscribed(self) -> TokenSubscription:
        if self._source is None:
            raise RuntimeError("not subscribed")
        return self._source

    def _start(self, source: TokenSource, *, offset: int) -> Relay:
        call = self._call
        self._relay = self._services.tokens.relay(
            source, call.caller.tenant, call.request_id, offset=offset, on_accept=self._take
        )
        return self._relay

    @property
    def has_received(self) -> bool:
        """True if a chunk was received."""
        return self._relay is not None and self._relay.has_received

    @property
    def has_ended(self) -> bool:
        """True if the terminal chunk was received."""
        return self._relay is not None and self._relay.state.is_ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tokens_pb2.TokenChunk:
        """The next chunk for the client.

        Raises:
            InferFluxError: the generation failed.
        """
        if self._failure is not None:
            raise self._failure
        relay = self._relay or self._begun()
        chunk = None if self._is_told_end else await relay.next()
        if chunk is None:
            raise StopAsyncIteration
        if chunk.token_ids:
            self._account.note_tokens(len(chunk.token_ids))
        self._account.note_text(chunk.text)
        self._note_end(chunk)
        if chunk.HasField("finished"):
            self._is_told_end = True
            self._check_offset(chunk.finished)
        elif chunk.HasField("failed"):
            self._failure = from_failed(chunk.failed)
            chunk.ClearField("failed")
            if not chunk.token_ids:
                raise self._failure
        return chunk

    def read(self, chunk: tokens_pb2.TokenChunk) -> inference_pb2.ChatDelta | None:
        """Content, reasoning and calls of the next chunk, in order; None where all of its text is content."""
        chat = self._chat if self._rest is None else self._rest.reader
        return None if chat is None else chat.read(chunk)

    async def follow(self) -> None:
        """Read on until the terminal chunk, for no longer than the resume window and `_LAST_CHUNK_S`."""
        if self._relay is None:
            return
        if self._account.outcome != FILTERED:
            self.guard = None  # no client gets what comes now
        try:
            async with asyncio.timeout((self._reader.window_s or 0) + _LAST_CHUNK_S):
                while (chunk := await self._relay.next()) is not None:
                    self._note_end(chunk)
        except (TimeoutError, InferFluxError) as error:
            log.debug(
                "a stream was not followed to its end", request_id=self._call.request_id, why=str(error)
            )

    def count_seen(self) -> None:
        """Tell the account how many tokens have come."""
        if self._relay is not None:
            self._account.count_seen(self._relay.state.tokens_end)

    def close(self) -> None:
        """Stop reading."""
        if self._source is not None:
            self._source.close()
        self._relay = None  # it refers to this stream: only the garbage collector would free the two

    def _take(self, chunk: tokens_pb2.TokenChunk) -> Iterable[tokens_pb2.TokenChunk]:
        """The chunks that the client gets for a received one."""
        if self.query is not None:
            self.query.recorder.take(chunk)
        passed: Iterable[tokens_pb2.TokenChunk] = (chunk,)
        if self.guard is not None:
            if self.guard.finding is not None:  # for the client the answer has ended
                self._note_end(chunk)
            passed = self.guard.take(chunk)
        rest = self._rest
        return passed if rest is None else [each for each in passed if rest.take(each)]

    def _note_end(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Take note of a terminal chunk, before anything else is done about it."""
        match chunk.WhichOneof("event"):
            case "finished":
                self._note_finished(chunk.finished)
            case "failed":
                self._account.note_outcome(from_failed(chunk.failed).reason.lower())
            case _:
                return
        self._reader.attempt_id = chunk.attempt_id or self._reader.attempt_id
        self._account.model = chunk.model or self._account.model

    def _note_finished(self, finished: tokens_pb2.Finished) -> None:
        n_seen = self._relay.state.tokens_end if self._relay is not None else 0
        is_of_job = self._account.note_finished(finished, n_seen=n_seen)
        if is_of_job and self.query is not None and self._services.answers is not None:
            self._services.answers.keep(self.query)

    def _check_offset(self, finished: tokens_pb2.Finished) -> None:
        """Raises:
        InvalidArgument: the client said that it has more tokens than the complete answer.
        """
        if self._relay is None or finished.reason not in _COMPLETE:
            return
        end = self._relay.state.tokens_end
        if self._offset > end:
            message = f"the answer has {end} tokens; it cannot be resumed at {self._offset}"
            raise InvalidArgument(message, field="offset", reason="OFFSET_BEYOND_END")
