"""A child of a worker that pulls a model, or reads models again, so that no token stream waits for it.

    python -m inferflux.worker.store < TASK

It reads a `Task` and writes `Report`s, a line each. What it leaves of a broken pull is a
part, which the next one resumes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from inferflux.common.contract.errors import InferFluxError, Internal, InvalidArgument, ResourceExhausted
from inferflux.common.http.http_addresses import parse_networks
from inferflux.common.http.http_client import HttpClient
from inferflux.common.http.http_proxies import Proxies
from inferflux.common.http.http_settings import CA_VARIABLE
from inferflux.common.process.child.parent_death import exit_with_parent
from inferflux.common.process.setting_kinds import listed
from inferflux.common.process.tls import ClientTls, TlsFiles

from .folder import StoreFolder
from .pulling import pull
from .task import Report, Task
from .verifying import verify

_INTERVAL_S = 0.2
# Behind what serves.
_NICE = 10


class Reports:
    """Writes them, no more often than anybody looks."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._doing = ""

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if report.has_ended or report.doing != self._doing or now >= self._next_s:
            self._next_s, self._doing = now + _INTERVAL_S, report.doing
            sys.stdout.write(report.to_json() + "\n")
            sys.stdout.flush()


async def run_task(task: Task, say: Reports) -> Report:
    """Do what a task says.

    Raises:
        InferFluxError: it cannot be done.
    """
    folder = StoreFolder(Path(task.store))
    if task.do == "verify":
        return verify(folder, task.name, say, task.gone)
    tls = ClientTls(TlsFiles(ca=Path(task.ca) if task.ca else None, variable=CA_VARIABLE))
    networks = parse_networks(listed(task.networks))
    client = HttpClient(allowed_networks=networks, tls=tls.context, proxies=Proxies.of_environment())
    try:
        return await pull(task, folder, client, say)
    finally:
        await client.aclose()


def main(doing: Callable[[Reports], Coroutine[None, None, Report]] | None = None) -> int:
    """The process: what it does by default is the task on stdin. How it ended is its last line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent(signal.SIGKILL)
    os.nice(_NICE)
    say = Reports()
    try:
        report = asyncio.run(doing(say) if doing else run_task(Task.from_json(sys.stdin.read()), say))
    except InferFluxError as error:
        report = _failed(error)
    except OSError as error:
        report = _failed(ResourceExhausted(f"the store cannot be written: {error}", reason="STORE_BROKEN"))
    except Exception as error:  # noqa: BLE001 - the edge of a process: its parent logs it
        report = _failed(Internal(f"it ended unexpectedly: {type(error).__name__}", reason="STORE_BROKEN"))
    say(report)
    return 0


def _failed(error: InferFluxError) -> Report:
    field = error.field if isinstance(error, InvalidArgument) else ""
    return Report(has_ended=True, code=error.code, reason=error.reason, field=field, message=error.message)


if __name__ == "__main__":
    sys.exit(main())
