"""`python -m inferflux.worker`: one worker, configured by environment variables."""

from __future__ import annotations

from inferflux.common.process import lifecycle
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.settings import load

from .app import serve
from .settings import WorkerSettings


def main() -> None:
    settings = load(WorkerSettings)

    async def run(shutdown: Shutdown) -> None:
        await serve(settings, shutdown)

    lifecycle.run(run, settings=settings, service="worker")


if __name__ == "__main__":
    main()
