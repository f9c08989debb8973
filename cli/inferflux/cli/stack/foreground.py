"""A stack in the foreground of a terminal: shown as it starts, ended by a signal, at once by a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator

from rich.console import Console
from rich.markup import escape

from inferflux.cli.reach.errors import INTERRUPTED

from . import Stack, StackOptions, StartError
from .follow import follow_logs
from .progress import StartDisplay


async def in_foreground(
    options: StackOptions,
    body: Callable[[Stack, Console], Awaitable[None]],
    *,
    is_verbose: bool = False,
    says_end: bool = True,
) -> int:
    """Bring a stack up, run `body` on it, end it; returns the exit status.

    SIGINT, SIGTERM or SIGHUP cancel `body`, or the start. Being ended while it is up is status 0: that is how
    `inferctl up` is meant to end.

    Args:
        is_verbose: print what every process logs.
        says_end: print how each process ended.
    """
    console = Console(highlight=False)
    display = StartDisplay(console, says_end=says_end)
    stack = Stack(options, observe=display.observe)
    main = asyncio.create_task(_run(stack, body, display, console, is_verbose=is_verbose))
    with _signals(main, stack, display):
        try:
            await main
        except asyncio.CancelledError:
            return 0 if display.is_up else INTERRUPTED
        except StartError as error:
            display.close()
            show_start_error(error)
            return 1
        finally:
            display.close()
    return 0


async def _run(
    stack: Stack,
    body: Callable[[Stack, Console], Awaitable[None]],
    display: StartDisplay,
    console: Console,
    *,
    is_verbose: bool,
) -> None:
    follower = asyncio.create_task(follow_logs(stack, console)) if is_verbose else None
    try:
        async with stack:
            display.up()
            await body(stack, console)
    finally:
        if follower is not None:
            follower.cancel()


@contextlib.contextmanager
def _signals(main: asyncio.Task[None], stack: Stack, display: StartDisplay) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    was_signalled = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal was_signalled
        if was_signalled:
            stack.abandon()
            display.close()
            sys.stderr.write("ended at once\n")
            sys.stderr.flush()
            os._exit(128 + number)
        was_signalled = True
        display.ending()
        main.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def show_start_error(error: StartError) -> None:
    """The end of the log of the process that is to blame, then one line that names it."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in error.log_tail:
        console.print(f"  [dim]{escape(line)}[/]")
    console.print(f"inferctl: {escape(str(error))}", style="red")
