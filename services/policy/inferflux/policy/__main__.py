"""`python -m inferflux.policy`: one policy process, configured by environment variables alone."""

from __future__ import annotations

from functools import partial

from inferflux.common.process import lifecycle
from inferflux.common.process.settings import load

from .app import serve
from .settings import PolicySettings


def main() -> None:
    settings = load(PolicySettings)
    lifecycle.run(partial(serve, settings), settings=settings, service="policy")


if __name__ == "__main__":
    main()
