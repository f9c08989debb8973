"""`python -m inferflux.gateway`: one gateway process, configured by environment variables alone."""

from __future__ import annotations

from functools import partial

from inferflux.common.process import lifecycle
from inferflux.common.process.settings import load

from .app import serve
from .settings import GatewaySettings


def main() -> None:
    settings = load(GatewaySettings)
    lifecycle.run(partial(serve, settings), settings=settings, service="gateway")


if __name__ == "__main__":
    main()
