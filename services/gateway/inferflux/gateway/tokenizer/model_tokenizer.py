"""One model's tokenizer process: started, loaded, asked, ended when it is late, and started again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from inferflux.common.contract.errors import (
    InferFluxError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.v1 import generation_pb2, tokenizer_pb2

from .load_backoff import LoadBackoff
from .tokenizer_child import ProcessGoneError, ProcessLateError, TokenizerChild

log = logs.get()

# How many processes may die under a text, by themselves or killed for another's sake, until it fails.
_MAX_CRASHES = 2
_MAX_DEATHS = 10
# What a text gets at least in a new process, however long it has been worked on in earlier ones.
_LEAST_TIME_S = 0.2


@dataclass(frozen=True, slots=True)
class TokenizerLimits:
    """Limits of what each tokenizer process may use.

    Attributes:
        processes: at the same time, one for each model.
        threads: texts worked on at the same time.
        waiting: texts that may wait for a free thread; one more is refused.
        time_limit_s: for rendering and tokenizing one text; the process is killed when it is over.
        load_limit_s: the same for loading the tokenizer.
        memory_bytes: address space, the threads' stacks of 512 MiB each included.
        rendered_bytes: a rendered prompt.
    """

    processes: int = 16
    threads: int = 2
    waiting: int = 1024
    time_limit_s: float = 2.0
    load_limit_s: float = 30.0
    memory_bytes: int = 4 << 30
    rendered_bytes: int = 8 << 20


class _NotLoadedError(Exception):
    """The tokenizer cannot be used; says why."""


class ModelTokenizer:
    """Renders and tokenizes for one model, in a process of its own.

    A text that takes longer than the limit costs the process its life. The other texts it was working on are
    handed to the next one, and so are texts under which a process crashed, once. A tokenizer that cannot be
    loaded is tried again after a while, not at every request.

    Args:
        tokenizer_path: where the tokenizer file of a digest lies; raises InferFluxErrors.
    """

    def __init__(
        self, digest: str, limits: TokenizerLimits, tokenizer_path: Callable[[str], Awaitable[Path]]
    ) -> None:
        self.digest = digest
        self._limits = limits
        self._tokenizer_path = tokenizer_path
        self._backoff = LoadBackoff()
        self._ids = itertools.count(1)
        self._threads = asyncio.Semaphore(limits.threads)
        self._n_waiting = 0
        self._n_working = 0
        self._child: TokenizerChild | None = None
        self._loading: asyncio.Task[None] | None = None
        self._reaping = Background()
        self._is_closed = False
        # Why the system started no process at the last attempt.
        self.start_error = ""
        # Times of the loop at which it last started one, and started none.
        self.started_at = 0.0
        self.refused_at = 0.0

    @property
    def pid(self) -> int | None:
        """The id of the process that runs now."""
        return None if self._child is None or self._child.is_gone else self._child.pid

    @property
    def has_process(self) -> bool:
        """Return whether a process runs or is being started."""
        return self.pid is not None or self._loading is not None

    @property
    def needs_process(self) -> bool:
        """Return whether the next request starts one."""
        return not self.has_process and self._backoff.wait_s(_now()) == 0

    @property
    def is_idle(self) -> bool:
        """Return whether no text is being worked on."""
        return self._n_working == 0 and self._loading is None

    @property
    def should_revive(self) -> bool:
        """Return whether it had a process, or could get none, and another may be started."""
        return self.needs_process and (self._child is not None or bool(self.start_error))

    async def close(self) -> None:
        """End the process; nothing may be asked afterwards."""
        self._is_closed = True
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._child is not None:
            await self._child.close()
        await self._reaping.finish(None)

    async def load(self) -> None:
        """Start the process and load the tokenizer, so that the first request is not slower than the next.

        Raises:
            Unavailable: there is no tokenizer, or it cannot be used.
        """
        self._n_working += 1
        try:
            await self._loaded()
        finally:
            self._n_working -= 1

    async def work(
        self, request: tokenizer_pb2.TokenizerRequest, *, field: str
    ) -> tokenizer_pb2.TokenizerResponse:
        """Do what `request` asks for; `field` is named where the text is at fault.

        Raises:
            InvalidArgument: the template or the text is at fault.
            ResourceExhausted: too many texts wait.
            Unavailable, Internal: no usable tokenizer, or the process died over this text twice.
        """
        slow = f"rendering the chat template and tokenizing took longer than {self._limits.time_limit_s:g} s"
        return await self._answer(
            request,
            field=field,
            slow=InvalidArgument(slow, field=field, reason="TEXT_TOO_SLOW"),
            deadly=Internal("the tokenizer process died over this text", reason="TOKENIZER_CRASHED"),
        )

    async def compile(self, constraint: generation_pb2.StructuredConstraint, *, field: str) -> None:
        """Try a constraint; raises as `work` does, but InvalidArgument where processes die over it."""
        slow = f"compiling the constraint took longer than {self._limits.time_limit_s:g} s"
        request = tokenizer_pb2.TokenizerRequest(digest=self.digest)
        request.compile.constraint.CopyFrom(constraint)
        deadly = "compiling the constraint ends the process that tries it"
        await self._answer(
            request,
            field=field,
            slow=InvalidArgument(slow, field=field, reason="CONSTRAINT_TOO_SLOW"),
            deadly=InvalidArgument(deadly, field=field, reason="CONSTRAINT_CRASHES"),
        )

    async def _answer(
        self,
        request: tokenizer_pb2.TokenizerRequest,
        *,
        field: str,
        slow: InvalidArgument,
        deadly: InferFluxError,
    ) -> tokenizer_pb2.TokenizerResponse:
        self._n_working += 1
        try:
            return await self._work(request, field=field, slow=slow, deadly=deadly)
        finally:
            self._n_working -= 1

    async def _work(
        self,
        request: tokenizer_pb2.TokenizerRequest,
        *,
        field: str,
        slow: InvalidArgument,
        deadly: InferFluxError,
    ) -> tokenizer_pb2.TokenizerResponse:
        """The process's answer.

        Args:
            slow: raised when the time is over.
            deadly: raised when processes died over it.
        """
        crashes = 0
        left_s = limit_s = self._limits.time_limit_s
        for _ in range(_MAX_DEATHS):
            child = await self._loaded()
            try:
                response = await self._ask(child, request, left_s)
            except ProcessGoneError as error:
                if error.is_blameless:
                    left_s = max(left_s - error.worked_s, _LEAST_TIME_S)
                crashes += not error.is_blameless
                if crashes == _MAX_CRASHES:
                    break
                continue
            except ProcessLateError:
                log.warning("killed a tokenizer process: a text took too long", limit_s=limit_s)
                raise slow from None
            if response.WhichOneof("result") != "error":
                return response
            raise _to_error(response.error, field)
        raise deadly

    async def _ask(
        self, child: TokenizerChild, request: tokenizer_pb2.TokenizerRequest, limit_s: float
    ) -> tokenizer_pb2.TokenizerResponse:
        """Ask when a thread is free. It is busy until the answer, even if its caller has gone."""
        if self._threads.locked():
            if self._n_waiting >= self._limits.waiting:
                message = f"{self._n_waiting} texts wait to be tokenized already"
                raise ResourceExhausted(message, reason="TEXT_QUEUE_FULL")
            self._n_waiting += 1
            try:
                await self._threads.acquire()
            finally:
                self._n_waiting -= 1
        else:
            await self._threads.acquire()
        request.id = next(self._ids)
        answer = child.ask(request, limit_s)
        answer.add_done_callback(lambda _: self._threads.release())
        return await asyncio.shield(answer)

    async def _loaded(self) -> TokenizerChild:
        """The process with its tokenizer, started anew if the last one is gone."""
        while self._child is None or self._child.is_gone:
            if self._is_closed:
                raise Unavailable("the gateway is shutting down", reason="DRAINING")
            self._check_backoff()
            await asyncio.shield(self.start_loading())
        return self._child

    def start_loading(self) -> asyncio.Task[None]:
        """Load in the background, if that is not under way."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
            self._loading.add_done_callback(self._on_loaded)
        return self._loading

    def _on_loaded(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled():
            task.exception()  # the waiting callers have it

    def _check_backoff(self) -> None:
        wait_s = self._backoff.wait_s(_now())
        if wait_s > 0:
            message = f"the model's tokenizer cannot be used: {self._backoff.why}"
            raise Unavailable(message, reason="TOKENIZER_FAILED", retry_delay_s=wait_s)

    async def _load(self) -> None:
        """Start a process and have it load the tokenizer, twice if the first one ends over it."""
        path = await self._tokenizer_path(self.digest)
        if self._child is not None:
            self._reaping.start(self._child.close())
        while True:
            try:
                self._child = await self._load_once(path)
            except _NotLoadedError as error:
                self._backoff.failed(str(error), _now())
                log.warning("a tokenizer cannot be loaded", digest=self.digest[:12], why=str(error))
                self._check_backoff()
            else:
                self._backoff.succeeded()
                return

    async def _load_once(self, path: Path) -> TokenizerChild:
        """A new process with the tokenizer.

        Raises:
            _NotLoadedError: it cannot be loaded.
            Unavailable: the system starts no process.
        """
        child = await self._start()
        is_loaded = False
        load = tokenizer_pb2.LoadTokenizer(path=str(path))
        request = tokenizer_pb2.TokenizerRequest(id=next(self._ids), digest=self.digest, load=load)
        try:
            response = await child.ask(request, self._limits.load_limit_s)
            is_loaded = response.WhichOneof("result") == "loaded"
            if not is_loaded:
                raise _NotLoadedError(response.error.message)
        except ProcessGoneError as error:
            why = error.cause or "it did not say why"
            raise _NotLoadedError(f"its process ended over it: {why}") from None
        except ProcessLateError as error:
            raise _NotLoadedError(f"loading it took longer than {error.limit_s:g} s") from None
        finally:
            if not is_loaded:
                self._reaping.start(child.close())
        return child

    async def _start(self) -> TokenizerChild:
        try:
            child = await TokenizerChild.start(
                digest=self.digest,
                threads=self._limits.threads,
                memory_bytes=self._limits.memory_bytes,
                rendered_bytes=self._limits.rendered_bytes,
                on_gone=self._on_child_gone,
            )
        except Unavailable as error:
            self.start_error, self.refused_at = error.message, _now()
            raise
        self.start_error, self.started_at = "", _now()
        return child

    def _on_child_gone(self, cause: str) -> None:
        if not self._is_closed and self._loading is None:
            log.warning("a tokenizer process has ended", digest=self.digest[:12], cause=cause)


def _now() -> float:
    return asyncio.get_running_loop().time()


_BLAMELESS = frozenset(
    {
        tokenizer_pb2.TOKENIZER_FAULT_BAD_TOKENIZER,
        tokenizer_pb2.TOKENIZER_FAULT_UNKNOWN_TOKENIZER,
        tokenizer_pb2.TOKENIZER_FAULT_BAD_PROJECTOR,
    }
)
_REASONS = {
    tokenizer_pb2.TOKENIZER_FAULT_NO_TEMPLATE: "NO_CHAT_TEMPLATE",
    tokenizer_pb2.TOKENIZER_FAULT_BAD_TEMPLATE: "BAD_CHAT_TEMPLATE",
    tokenizer_pb2.TOKENIZER_FAULT_REFUSED: "REFUSED_BY_CHAT_TEMPLATE",
    tokenizer_pb2.TOKENIZER_FAULT_TOO_LONG: "PROMPT_TOO_LONG",
    tokenizer_pb2.TOKENIZER_FAULT_BAD_CONSTRAINT: "BAD_CONSTRAINT",
    tokenizer_pb2.TOKENIZER_FAULT_NO_TOOLS: "TOOLS_UNSUPPORTED",
    tokenizer_pb2.TOKENIZER_FAULT_NO_IMAGES: "IMAGES_UNSUPPORTED",
    tokenizer_pb2.TOKENIZER_FAULT_BAD_IMAGE: "BAD_IMAGE",
    tokenizer_pb2.TOKENIZER_FAULT_BAD_AUDIO: "BAD_AUDIO",
    tokenizer_pb2.TOKENIZER_FAULT_NO_SWITCH: "SWITCH_UNSUPPORTED",
    tokenizer_pb2.TOKENIZER_FAULT_NO_INFILL: "NO_INFILL",
}


def _to_error(error: tokenizer_pb2.TokenizerError, field: str) -> InferFluxError:
    if error.fault in _BLAMELESS:
        return Unavailable(error.message, reason="TOKENIZER_FAILED")
    message = error.message
    if error.fault == tokenizer_pb2.TOKENIZER_FAULT_NO_TEMPLATE:
        message += ": use Generate, which is /v1/completions over HTTP"
    if error.fault == tokenizer_pb2.TOKENIZER_FAULT_NO_TOOLS:
        field = "tools"
    return InvalidArgument(message, field=error.field or field, reason=_REASONS.get(error.fault, ""))
