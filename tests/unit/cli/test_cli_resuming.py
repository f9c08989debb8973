"""A request with a resume window over calls that a test plays: what is called next, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from inferflux.cli.resuming import Response, read_resuming
from inferflux.common.errors import NotFound
from inferflux.v1 import tokens_pb2

Code = grpc.StatusCode
FINISHED = tokens_pb2.TokenChunk(offset=2, finished=tokens_pb2.Finished())


def token(i: int) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(offset=i, token_ids=[i], text=f"{i} ")


def error(code: Code, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


LOST = error(Code.UNAVAILABLE, "Stream removed")
UNKNOWN = error(Code.NOT_FOUND, "nothing is known of it")
TAKEN = error(Code.ALREADY_EXISTS, "the request id is taken")
Said = tokens_pb2.TokenChunk | grpc.aio.AioRpcError | None


class ScriptedCall:
    """Says what it was given; None: nothing, for ever."""

    def __init__(self, said: Iterable[Said]) -> None:
        self._said = list(said)

    async def __aiter__(self) -> AsyncIterator[Response]:
        for one in self._said:
            if one is None:
                await asyncio.Event().wait()
            elif isinstance(one, grpc.aio.AioRpcError):
                raise one
            else:
                yield SimpleNamespace(chunk=one)

    def cancel(self) -> bool:
        return True


class Server:
    """Answers one call after the other, and notes what was called."""

    def __init__(self, *answers: list[Said]) -> None:
        self._answers = list(answers)
        self.called: list[str] = []
        self.unknown_cancels = 0
        self.resumed = 0

    def start(self) -> ScriptedCall:
        return self._answer("start")

    def resume(self, offset: int) -> ScriptedCall:
        return self._answer(f"resume {offset}")

    async def cancel(self) -> None:
        self.called.append("cancel")
        if self.unknown_cancels:
            self.unknown_cancels -= 1
            raise NotFound("not yet")

    async def text(self, *, window_s: int = 60) -> str:
        """What the client reads."""
        chunks = read_resuming(
            self.start, self.resume, self.cancel, window_s=window_s, on_resumed=self._on_resumed, pause_s=0
        )
        async with aclosing(chunks):
            return "".join([chunk.text async for chunk in chunks])

    def _on_resumed(self) -> None:
        self.resumed += 1

    def _answer(self, called: str) -> ScriptedCall:
        self.called.append(called)
        return ScriptedCall(self._answers.pop(0))


async def test_a_call_that_was_lost_before_its_first_token_is_resumed() -> None:
    server = Server([LOST], [LOST], [token(0), token(1), FINISHED])
    assert await server.text() == "0 1 "
    assert server.called == ["start", "resume 0", "resume 0"]
    assert server.resumed == 1


async def test_a_request_that_is_not_known_after_a_loss_is_sent_again_and_resumed_if_it_is_after_all() -> (
    None
):
    server = Server([LOST], [UNKNOWN], [TAKEN], [token(0), LOST], [token(1), FINISHED])
    assert await server.text() == "0 1 "
    assert server.called == ["start", "resume 0", "start", "resume 0", "resume 1"]


async def test_a_request_that_was_answered_is_never_sent_again() -> None:
    server = Server([token(0), LOST], [UNKNOWN], [token(1), FINISHED])
    assert await server.text() == "0 1 "
    assert server.called == ["start", "resume 1", "resume 1"]


@pytest.mark.parametrize(
    "refusal",
    [
        TAKEN,
        UNKNOWN,
        error(Code.INVALID_ARGUMENT, "no"),
        error(Code.UNAVAILABLE, "failed to connect to all addresses"),
        error(Code.UNAVAILABLE, "DNS resolution failed for nowhere"),
    ],
)
async def test_what_is_refused_at_first_is_an_error_at_once(refusal: grpc.aio.AioRpcError) -> None:
    server = Server([refusal])
    with pytest.raises(grpc.aio.AioRpcError):
        await server.text()
    assert server.called == ["start"]


async def test_a_loss_is_an_error_when_the_window_has_passed() -> None:
    server = Server([LOST])
    with pytest.raises(grpc.aio.AioRpcError):
        await server.text(window_s=-1)


@pytest.mark.parametrize("first", [[None], [LOST]])
async def test_leaving_before_the_first_token_cancels_until_the_request_is_known(first: list[Said]) -> None:
    server = Server(first, [None])
    server.unknown_cancels = 2
    reading = asyncio.create_task(server.text())
    async with asyncio.timeout(5):
        while server.called[-1:] != ["start" if first == [None] else "resume 0"]:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert server.called[-3:] == ["cancel"] * 3
    assert server.called.count("cancel") == 3
