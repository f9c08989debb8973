"""`python -m chaos`: what `make chaos` runs."""

from __future__ import annotations

import argparse
import asyncio
import sys

from .run import Settings, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="the same seed gives the same faults and requests"
    )
    parser.add_argument("--seconds", type=_seconds, default=120.0, help="how long the load lasts, 10 to 3600")
    parser.add_argument(
        "--streams", type=_streams, default=12, help="requests under way at any time, 1 to 256"
    )
    parser.add_argument(
        "--roles",
        action="store_true",
        help="a prefill and two decode workers, long prompts, and faults of the KV state that they exchange",
    )
    parser.add_argument("--calm", action="store_true", help="no faults, the same load")
    parser.add_argument("--keep", action="store_true", help="keep the logs even if all is well")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every fault as it happens")
    asked = parser.parse_args()
    settings = Settings(
        seed=asked.seed,
        seconds=asked.seconds,
        streams=asked.streams,
        has_roles=asked.roles,
        is_calm=asked.calm,
        keeps_logs=asked.keep,
        is_verbose=asked.verbose,
    )
    try:
        return asyncio.run(run(settings))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


def _seconds(text: str) -> float:
    return _within(float(text), 10, 3600)


def _streams(text: str) -> int:
    return int(_within(int(text), 1, 256))


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"must be {low:g} to {high:g}")
    return value


sys.exit(main())
