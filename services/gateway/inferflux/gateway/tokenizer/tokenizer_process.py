"""The tokenizer process: a child of the gateway that renders the chat template, tokenizes and tries
constraints for one model.

Templates come with models and may loop for ever; llama.cpp and llguidance are native code. They do not belong
into the process that holds all connections. So they run here, and the gateway kills this process when it is
late.

    python -m inferflux.gateway.tokenizer.tokenizer_process PARENT_PID FD THREADS
        MEMORY_BYTES RENDERED_BYTES DIGEST

FD is one end of a socket pair. The process ends when the other end is closed, and when its parent dies.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from inferflux.common.process.child.frames import ChildEnd
from inferflux.common.process.child.parent_death import exit_with_parent
from inferflux.common.process.child.process_limits import bound
from inferflux.v1 import tokenizer_pb2

from .rendering import Asked, plain
from .tokenizer import Tokenizer
from .tokenizer_fault import TokenizerFaultError

# llama.cpp's regular expressions recurse deeply: see tokenizer.MAX_RUN_CHARS.
STACK_BYTES = 512 << 20
# Of a thread that compiles a constraint.
COMPILE_STACK_BYTES = 32 << 20


class TokenizerServer:
    """Answers requests from one socket with a few threads: whichever is free reads the next request."""

    def __init__(self, peer: socket.socket, *, max_rendered_bytes: int) -> None:
        self._gateway = ChildEnd(peer, tokenizer_pb2.TokenizerRequest.FromString)
        self._max_rendered_bytes = max_rendered_bytes
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._loading = threading.Lock()

    def run(self) -> None:
        """Serve until the other end is closed, which raises EOFError or OSError."""
        while True:
            with self._reading:
                request = self._gateway.receive()
            response = self._answer(request)
            with self._writing:
                self._gateway.send(response)

    def _answer(self, request: tokenizer_pb2.TokenizerRequest) -> tokenizer_pb2.TokenizerResponse:
        response = tokenizer_pb2.TokenizerResponse(id=request.id)
        try:
            self._work(request, response)
        except TokenizerFaultError as error:
            response.error.fault = error.fault
            response.error.message = error.message
            response.error.field = error.field
        except MemoryError:
            response.error.fault = tokenizer_pb2.TOKENIZER_FAULT_BAD_TEXT
            response.error.message = "the text takes too much memory"
        return response

    def _work(
        self, request: tokenizer_pb2.TokenizerRequest, response: tokenizer_pb2.TokenizerResponse
    ) -> None:
        kind = request.WhichOneof("work")
        if kind == "load":
            loaded = self._load(Path(request.load.path))
            response.loaded.has_chat_template = loaded.has_chat_template
            return
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise TokenizerFaultError(
                tokenizer_pb2.TOKENIZER_FAULT_UNKNOWN_TOKENIZER, "the tokenizer is not loaded"
            )
        if kind == "compile":
            _in_small_stack(partial(tokenizer.compile, request.compile.constraint))
            response.compiled.SetInParent()
            return
        if kind == "detokenize":
            response.text = tokenizer.detokenize(request.detokenize.tokens.ids)
            return
        if kind == "texts":
            response.texts.SetInParent()
            for ids in _ids_of_texts(tokenizer, request):
                response.texts.texts.add(ids=ids)
            return
        if kind == "describe":
            response.described.CopyFrom(tokenizer.described())
            return
        if kind == "gap":
            gap = request.gap
            ids = tokenizer.tokenize_gap(gap.prefix, gap.suffix, request.context_length)
            response.tokens.ids.extend(ids)
            return
        if kind == "chat":
            if request.chat.is_plain:
                rendered = plain(request.chat.messages[0].parts)
            else:
                rendered = tokenizer.render(request.chat.messages, request.chat.tools, Asked.of(request.chat))
            if rendered.n_images != len(request.chat.images):
                message = "there are other images than those of the messages"
                raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_NO_IMAGES, message)
            response.chat.reasoning = rendered.reasoning
            response.chat.syntax.CopyFrom(rendered.syntax)
            response.chat.prefix = rendered.prefix
            chat, projector = request.chat, request.chat.projector_path
            prompt = tokenizer.tokenize_rendered(
                rendered, request.context_length, chat.images, Path(projector) if projector else None
            )
            response.chat.tokens.ids.extend(prompt.ids)
            response.chat.images.extend(prompt.images)
        else:
            work = request.text
            ids = tokenizer.tokenize(work.text, request.context_length, is_bare=work.is_bare)
            response.tokens.ids.extend(ids)

    def _load(self, path: Path) -> Tokenizer:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = Tokenizer(path, max_rendered_bytes=self._max_rendered_bytes)
            return self._tokenizer


def _ids_of_texts(tokenizer: Tokenizer, request: tokenizer_pb2.TokenizerRequest) -> list[list[int]]:
    asked = request.texts
    if asked.is_bare:
        return tokenizer.tokenize_bare(asked.texts)
    query = asked.query if asked.HasField("query") else None
    return tokenizer.tokenize_texts(asked.texts, request.context_length, query=query, truncate=asked.truncate)


def main() -> None:
    parent, fd, threads, memory_bytes, rendered_bytes = (int(argument) for argument in sys.argv[1:6])
    # A terminal's Ctrl-C and a supervisor's SIGTERM reach the whole group; the gateway drains first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exit_with_parent(signal.SIGKILL, parent=parent)
    bound("RLIMIT_AS", memory_bytes, memory_bytes)
    bound("RLIMIT_CORE", 0, 0)
    server = TokenizerServer(socket.socket(fileno=fd), max_rendered_bytes=rendered_bytes)
    threading.stack_size(STACK_BYTES)
    # A template that spins must not keep the other threads waiting for the interpreter.
    sys.setswitchinterval(0.0005)
    # Loading bounds what the process may map meanwhile: every thread has its stack by then.
    all_started = threading.Barrier(threads)
    workers = [threading.Thread(target=_run, args=(server, all_started), daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    threading.stack_size(COMPILE_STACK_BYTES)
    for worker in workers:
        worker.join()


def _in_small_stack(work: Callable[[], None]) -> None:
    """Do it in a thread of its own. A work that runs out of stack fills all of it first, which takes time."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    future.result()


def _run(server: TokenizerServer, all_started: threading.Barrier) -> None:
    """One thread gone is the process gone: the gateway notices and starts another."""
    status = 0
    try:
        all_started.wait()
        server.run()
    except (EOFError, OSError):
        pass
    except BaseException:  # noqa: BLE001 - the process's edge
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
