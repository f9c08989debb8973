"""Wall clocks that differ from host to host, by libfaketime. Monotonic clocks stay as they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from inferflux.cli.stack.plan import ProcessSpec

_LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")
# Programs of Go ask the kernel without a library between.
_UNMOVED = ("nats",)


def library() -> Path | None:
    """libfaketime of this machine, if it has one."""
    for pattern in _LIBRARIES:
        for found in sorted(Path("/").glob(pattern.lstrip("/"))):
            return found
    return None


def shifted(spec: ProcessSpec, ahead_s: float) -> ProcessSpec:
    """The process with its clock ahead by `ahead_s`, or behind.

    Raises:
        FileNotFoundError: there is no libfaketime.
    """
    env = {key: value for key, value in spec.env.items() if key not in ("LD_PRELOAD", "FAKETIME")}
    if ahead_s and spec.kind not in _UNMOVED:
        found = library()
        if found is None:
            raise FileNotFoundError("there is no libfaketime: Debian's package is called faketime")
        env |= {
            "LD_PRELOAD": str(found),
            "FAKETIME": f"{ahead_s:+g}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Without shared memory between processes, each counts from the true time.
            "FAKETIME_NO_CACHE": "1",
        }
    return dataclasses.replace(spec, env=env)
