"""llama.cpp of this environment, the CPU, and drivers of GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from inferflux.cli.doctor.seen import Llama
from inferflux.common.process.machine.cgroups import read

from .children import ChildError, ask

_FEATURES = "inferflux.common.llama.features"
# Files of drivers that compute, by ggml's name of what uses them.
_DRIVERS = {"CUDA": ("dev/nvidia0", "dev/nvidiactl", "dev/dxg"), "ROCm": ("dev/kfd",)}
_FEATURE = re.compile(r"(\w+) = (\w+)")


async def look(env: Mapping[str, str], root: Path = Path("/")) -> Llama:
    """Load it in a process of its own, and say what it was built with."""
    found = Llama(cpu_flags=_cpu_flags(root), drivers=_drivers(root))
    try:
        said = await ask(_FEATURES, env=env)
    except ChildError as error:
        return replace(found, failure=str(error), signal=error.signal)
    features = dict(_FEATURE.findall(said["system_info"]))
    return replace(found, version=said["version"], features=features, backends=said["backends"])


def _cpu_flags(root: Path) -> frozenset[str]:
    for line in read(root / "proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _drivers(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, files in _DRIVERS.items():
        there = [f"/{file}" for file in files if (root / file).exists()]
        found |= {name: there[0]} if there else {}
    return found
