"""Clients that ask one request after the other with inferflux-client, and keep what they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from chaos.transcript import Transcript
from chaos.workload import Whim

from inferflux.client import AsyncClient
from inferflux.client.async_stream import AsyncStream
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, NotFound, Unavailable

from .asks import Asked
from .errors import FleetError
from .history import History, Served

# How long one request may take, whatever happens.
PATIENCE_S = 120.0
_RETRY_S = 0.3
_CANCEL_LIMIT_S = 5.0


class Load:
    """Use as an async context manager: inside, the clients ask. On leaving they are ended.

    Args:
        endpoints: of the gateways. Half of the clients prefer the first one, half the last.
        streams: what each client asks.
        expect: told of each request before it is sent.
        retries: how often a client sends a refused request again.
        slots: requests that workers run at once; others wait.
        comes_back: whether a client whose stream has failed resumes it once more, as after a longer outage.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        api_key: str,
        model: str,
        streams: Sequence[Iterator[Asked]],
        history: History,
        *,
        expect: Callable[[Asked], None],
        slots: int,
        retries: int = 2,
        comes_back: bool = False,
    ) -> None:
        self._model = model
        self._streams = streams
        self._history = history
        self._expect = expect
        self._slots = slots
        self._comes_back = comes_back
        orders = [list(endpoints), list(reversed(endpoints))]
        self._clients = [AsyncClient(order, api_key=api_key, retries=retries) for order in orders]
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def __aenter__(self) -> Self:
        for index, stream in enumerate(self._streams):
            client = self._clients[index % len(self._clients)]
            self._tasks.append(asyncio.create_task(self._one_after_the_other(client, stream)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()

    async def until_open(self, limit_s: float = 60.0) -> None:
        """Return when every client has begun a request, and as many have tokens as there can be at once.

        Raises:
            FleetError: time is up.
        """
        wanted, until_s = min(len(self._streams), self._slots), time.monotonic() + limit_s
        while (flowing := self._history.flowing) < wanted or self._history.begun < len(self._streams):
            if time.monotonic() > until_s:
                raise FleetError(f"{flowing} of {wanted} clients had tokens after {limit_s:g} s")
            await asyncio.sleep(0.02)

    async def finish(self, limit_s: float) -> None:
        """Begin nothing more; return when all has ended, or after `limit_s`."""
        self._is_over = True
        done, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for served in self._history.underway.values():
            served.transcript.failure = f"was not over {limit_s:g} s after the load"
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()

    async def _one_after_the_other(self, client: AsyncClient, stream: Iterator[Asked]) -> None:
        for ask in stream:
            if self._is_over:
                return
            self._expect(ask)
            await self._serve(client, ask)

    async def _serve(self, client: AsyncClient, ask: Asked) -> None:
        transcript = Transcript(
            order=ask,
            request_id=ask.request_id,
            expected=ask.token_ids,
            began_s=time.monotonic(),
            good_end=ask.good_end,
        )
        with self._history.recording(Served(ask, transcript)) as served:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._converse(client, served)
            except TimeoutError:
                transcript.failure = f"not over after {PATIENCE_S:g} s"

    async def _converse(self, client: AsyncClient, served: Served) -> None:
        ask, transcript = served.ask, served.transcript
        stream = client.generate(
            ask.prompt,
            model=self._model,
            request_id=ask.request_id,
            timeout_s=ask.timeout_s,
            priority=ask.priority,
            **ask.params,
        )
        while True:
            try:
                await self._read(client, stream, served)
            except InferFluxError as error:
                if not await self._takes_up(error, served):
                    return
                stream = client.resume(ask.request_id, offset=transcript.offset)
                transcript.resumes += 1
            else:
                transcript.resumes += stream.resumes
                return

    async def _takes_up(self, error: InferFluxError, served: Served) -> bool:
        """Whether the stream is resumed after it has failed for good."""
        transcript = served.transcript
        is_deadline = isinstance(error, DeadlineExceeded)
        if self._comes_back and transcript.has_chunks and not isinstance(error, NotFound | DeadlineExceeded):
            served.came_back = True
            await asyncio.sleep(_RETRY_S)
            return True
        transcript.failure = f"{error.reason}: {error.message}"
        served.is_refused = isinstance(error, Unavailable) and not transcript.has_chunks
        served.is_late = is_deadline
        transcript.is_excused = is_deadline and not served.ask.is_due
        return False

    async def _read(self, client: AsyncClient, stream: AsyncStream, served: Served) -> None:
        transcript, ask = served.transcript, served.ask
        async with stream, _Canceller(client, ask.request_id) as canceller:
            if ask.whim_after < 0 and self._is_whim_done(canceller, served):
                return
            async for chunk in stream:
                now_s = time.monotonic()
                served.received(chunk, now_s)
                transcript.add(chunk, now_s)
                if transcript.offset >= ask.whim_after >= 0 and self._is_whim_done(canceller, served):
                    return
        if transcript.terminal is None:
            transcript.failure = "the stream ended without a terminal chunk"

    @staticmethod
    def _is_whim_done(canceller: _Canceller, served: Served) -> bool:
        """Do as the client likes; True if it leaves."""
        transcript = served.transcript
        if transcript.is_over:
            return False
        if served.ask.whim is Whim.LEAVE:
            transcript.has_left = True
        elif served.ask.whim is Whim.CANCEL and not transcript.has_cancelled:
            transcript.has_cancelled = True
            canceller.begin()
        return transcript.has_left


class _Canceller:
    """Cancels a request again and again, until that is confirmed or its stream is left."""

    def __init__(self, client: AsyncClient, request_id: str) -> None:
        self._client = client
        self._request_id = request_id
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def begin(self) -> None:
        self._task = asyncio.create_task(self._cancel())

    async def _cancel(self) -> None:
        while True:
            with contextlib.suppress(InferFluxError):
                await self._client.cancel(self._request_id, timeout_s=_CANCEL_LIMIT_S)
                return
            await asyncio.sleep(_RETRY_S)
