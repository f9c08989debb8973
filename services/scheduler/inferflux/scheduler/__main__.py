"""`python -m inferflux.scheduler`: one scheduler process, configured by environment variables alone."""

from __future__ import annotations

from functools import partial

from inferflux.common.process import lifecycle
from inferflux.common.process.settings import load

from .app import serve
from .settings import SchedulerSettings


def main() -> None:
    settings = load(SchedulerSettings)
    lifecycle.run(partial(serve, settings), settings=settings, service="scheduler")


if __name__ == "__main__":
    main()
