"""Lifecycle of a process: the loop, logging, signals, and the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import uvloop

from inferflux.common.contract.errors import InferFluxError, InvalidArgument

from . import logs
from .child.parent_death import exit_with_parent
from .machine import heap
from .settings import ServiceSettings, misspelt

# After the drain limit, what main() gets to put its things away before it is cancelled.
_TIDY_UP_S = 5.0
# The exit status for a variable whose value cannot be used: that of `settings.load`.
_BAD_SETTING = 2

IGNORES_VARIABLE = "ignores a variable that it does not know"
"""Logged for each variable that is nearly one of the service's own."""

log = logs.get()


class Shutdown:
    """Set by the first SIGTERM or SIGINT, or by `request`."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()

    def request(self) -> None:
        self.requested.set()

    async def wait(self) -> None:
        await self.requested.wait()


def run(main: Callable[[Shutdown], Awaitable[None]], *, settings: ServiceSettings, service: str) -> NoReturn:
    """Run a service to its end and exit: 0 when it drained, 1 on an error, 128 + n on a second signal n.

    The status is 2 when the error names an environment variable that cannot be used.

    `main` should return soon after the shutdown is requested; it is cancelled when it has not done so
    `settings.drain_limit_s` seconds (and a little to tidy up) later.
    """
    logs.configure(service, settings.log_level, settings.log_format)
    for variable, nearest in misspelt(type(settings), os.environ).items():
        log.warning(IGNORES_VARIABLE, variable=variable, nearest=nearest)
    if settings.parent_pid_check:
        exit_with_parent()
    heap.set_apart()
    heap.collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_supervise(main, settings.drain_limit_s, service))
    sys.exit(status)


async def _supervise(main: Callable[[Shutdown], Awaitable[None]], drain_limit_s: float, service: str) -> int:
    shutdown = Shutdown()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, shutdown)
    task = asyncio.ensure_future(main(shutdown))
    watchdog = asyncio.create_task(_cancel_when_overdue(task, shutdown, drain_limit_s))
    try:
        await task
    except InferFluxError as error:
        print(f"{service}: {error.in_full}", file=sys.stderr)  # noqa: T201
        return _BAD_SETTING if _is_about_a_variable(error) else 1
    except asyncio.CancelledError:
        log.error("did not drain in time", limit_s=drain_limit_s)
        return 1
    except Exception:
        log.exception("ended by an unexpected error")
        return 1
    finally:
        watchdog.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watchdog
    return 0


def _is_about_a_variable(error: InferFluxError) -> bool:
    return isinstance(error, InvalidArgument) and error.field.startswith(("INFERFLUX_", "OTEL_"))


def _on_signal(number: signal.Signals, shutdown: Shutdown) -> None:
    if shutdown.requested.is_set():
        sys.stderr.flush()
        os._exit(128 + number)
    log.info("draining", signal=number.name)
    shutdown.request()


async def _cancel_when_overdue(task: asyncio.Future[None], shutdown: Shutdown, drain_limit_s: float) -> None:
    await shutdown.wait()
    await asyncio.sleep(drain_limit_s + _TIDY_UP_S)
    task.cancel()
