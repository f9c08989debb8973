"""`python -m fleet`: what `make fleet` runs."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import sys
from collections.abc import Callable
from pathlib import Path

from . import clocks, namespaces, process_namespace
from .cases import CHAOS, CLOCKS, ROLES, case_of
from .layout import SLOTS, STEP_S, WITH_ROLES
from .run import run

# Not a failure: what CI takes for a test that was skipped.
SKIPPED = 77
# What a fleet may take to come up and to end, beside its cases.
_START_AND_END_S = 240.0
# Between the moment when a run gives up and the one when it is ended.
_GRACE_S = 45.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make fleet",
        description="hosts of a fleet, each in a network namespace, broken under load",
    )
    parser.add_argument(
        "cases",
        nargs="*",
        default=[CHAOS],
        help="chaos, calm, clocks, or VERB:HOST[+HOST]: killed, stopped, cut, deaf, mute, apart or minority,"
        " and a host or leader, standby, primary; roles alone: prefill and decode workers; chaos by default",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the same seed gives the same faults and requests"
    )
    parser.add_argument(
        "--seconds", type=_between(5, 3600), default=120.0, help="how long a load lasts, 5 to 3600"
    )
    parser.add_argument(
        "--lasts", type=_between(0.5, 600), default=10.0, help="how long a fault lasts, 0.5 to 600"
    )
    parser.add_argument("--streams", type=int, default=12, help="requests under way at any time")
    parser.add_argument("--slots", type=int, default=None, help="requests that each worker runs at once")
    parser.add_argument("--step", type=float, default=None, help="seconds between two tokens of a stream")
    parser.add_argument("--keep", action="store_true", help="keep logs and histories even if all is well")
    parser.add_argument("--json", type=Path, default=None, help="write what each case gave to this file")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every fault as it happens")
    asked = parser.parse_args()
    if why := "" if process_namespace.is_inside() else namespaces.missing() or process_namespace.missing():
        print(f"no fleet can be started: {why}", file=sys.stderr)
        return SKIPPED
    try:
        cases = [
            case_of(text, seed=asked.seed, seconds=asked.seconds, lasts_s=asked.lasts, streams=asked.streams)
            for text in asked.cases
        ]
    except ValueError as error:
        parser.error(str(error))
    has_roles = ROLES in asked.cases
    if has_roles and set(asked.cases) != {ROLES}:
        parser.error("roles has workers of its own: no other case goes with it")
    if CLOCKS in asked.cases and clocks.library() is None:
        print("no clock can be set: libfaketime is missing (Debian: faketime)", file=sys.stderr)
        return SKIPPED
    limit_s = _START_AND_END_S + sum(case.limit_s for case in cases)
    if not process_namespace.is_inside():
        return process_namespace.again(sys.argv[1:], limit_s + _GRACE_S)
    # Whatever hangs, the stacks of all threads are told then, and the run ends.
    faulthandler.dump_traceback_later(limit_s + _GRACE_S, exit=True)
    try:
        return asyncio.run(
            run(
                cases,
                seed=asked.seed,
                env=(WITH_ROLES if has_roles else {})
                | {
                    name: f"{value:g}"
                    for name, value in ((SLOTS, asked.slots), (STEP_S, asked.step))
                    if value is not None
                },
                limit_s=limit_s,
                keeps=asked.keep,
                is_verbose=asked.verbose,
                output=asked.json,
            )
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


def _between(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be {low:g} to {high:g}")
        return value

    return parse


sys.exit(main())
