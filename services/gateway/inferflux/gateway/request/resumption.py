"""A client's stream taken up again, wherever it was begun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inferflux.common.contract.errors import NotFound, Unavailable
from inferflux.gateway.stream.chunk_guard import ChunkGuard
from inferflux.gateway.stream.reader import Reader
from inferflux.gateway.stream.stream_guards import model_told_by
from inferflux.v1 import scheduler_pb2

from .answer_stream import AnswerStream
from .call import Call
from .chat_reader import has_format
from .services import Services

# Time for a stream that is to be resumed to say something.
_RESUME_WAIT_S = 1.0
# A standby leads within this time.
_TAKE_OVER_S = 3.0

Asked = asyncio.Task[scheduler_pb2.ReaderReply | None]


class Resumption:
    """Starts a stream at an offset, from chunks stored in NATS and those that a worker still publishes."""

    def __init__(self, call: Call, services: Services, reader: Reader, stream: AnswerStream) -> None:
        self._call = call
        self._services = services
        self._reader = reader
        self._stream = stream

    async def run(self, offset: int) -> None:
        """Begin the stream at an offset.

        Raises:
            NotFound: the scheduler does not know the request, and no chunk of it is stored.
            Unavailable: NATS, or the request's scheduler, does not answer.
        """
        await self._stream.subscribe()
        self._reader.join()
        asked = self._reader.announce()
        try:
            stored = await self._services.tokens.stored(self._call.subject)
            self._stream.guard = await self._guard_of(stored, asked)
            is_read_whole = offset > 0 and await self._is_read_whole(stored, asked)
            relay = self._stream.resume(offset, is_read_whole=is_read_whole)
            relay.take_all(stored)
            if not relay.has_received and not await relay.receives_within(_RESUME_WAIT_S):
                known = await asyncio.shield(asked)
                # Chunks that came before the stream was read may have been stored after that look.
                await relay.replay()
                if not relay.has_received:
                    self._check_known(known)
        except BaseException:  # what could not be resumed here is not ended here
            self._reader.withdraw(asked)
            raise

    async def _is_read_whole(self, stored: Sequence[bytes], asked: Asked) -> bool:
        """Whether what comes next can be read only after all that came before.

        The answer's first or last chunk decides where it is stored, and the scheduler otherwise. A request
        without any chunk that the scheduler does not know may be answered from the cache: all is yet to come.

        Raises:
            Unavailable: only some chunks in between are stored, and no scheduler answers.
        """
        decided = True if self._stream.guard is not None else has_format(stored)
        if decided is not None:
            return decided
        reply = await asyncio.shield(asked)
        if reply is not None and reply.was_found:
            return reply.has_answer_format
        if stored and reply is None:
            self._check_known(reply)
        return not stored

    async def _guard_of(self, stored: Sequence[bytes], asked: Asked) -> ChunkGuard | None:
        """What a resumed answer is held to. It sees the answer from its first token on.

        The last chunk names the model where it is stored, and the scheduler otherwise. Where neither does,
        the guardrails of every model hold.

        Raises:
            Unavailable: policy does not answer.
        """
        if not self._call.caller.guards_stream:
            return None
        model = model_told_by(stored)
        if not model and (reply := await asyncio.shield(asked)) is not None:
            model = reply.model
        return await self._services.guards.of(self._call.caller.tenant, model)

    def _check_known(self, reply: scheduler_pb2.ReaderReply | None) -> None:
        """No chunk tells of the request: the scheduler has to.

        Raises:
            NotFound: the scheduler does not know it.
            Unavailable: no scheduler has answered.
        """
        request_id = self._call.request_id
        if reply is None:
            message = f"no scheduler says whether the request {request_id} is there: resume it again"
            raise Unavailable(message, reason="NO_SCHEDULER", retry_delay_s=_TAKE_OVER_S)
        if not reply.was_found:
            raise NotFound(f"nothing is known of the request {request_id}", reason="UNKNOWN_REQUEST")
