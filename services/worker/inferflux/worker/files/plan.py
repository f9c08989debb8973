"""`python -m inferflux.worker.files.plan FILE`: what of a model fits which devices, as one line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from inferflux.common.contract.checks import MAX_SEQUENCES, MAX_TOKENS
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.machine.free_memory import free_bytes

from .device_plan import plan_devices
from .device_wish import MOST_GPUS
from .fit import PHYSICAL_BATCH
from .kv_types import NUMBER_TYPES, KvTypes
from .mmproj_file import probe_projection
from .model_file import ModelFileError, read_model_file
from .needs import Asked

_BYTES = TypeAdapter(ByteSize)
_SLOTS = 16
# No device has less.
_LEAST_BYTES = 1 << 20


class PlanError(Exception):
    """A flag asks for what cannot be; names it."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plan", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpus", default="", help="memory of each, such as 24GiB,24GiB")
    parser.add_argument("--memory", default="", help="main memory; what is free here by default")
    parser.add_argument("--context", type=int, default=0, help="most tokens of one request; 0: the model's")
    parser.add_argument("--slots", type=int, default=_SLOTS, help="requests at once")
    parser.add_argument("--kv-cells", type=int, default=0, help="of the KV cache; 0: by slots and context")
    parser.add_argument("--kv-type", default="f16", help="what keys and values are kept in; or KEYS,VALUES")
    parser.add_argument("--mmproj", type=Path, help="its projector")
    return parser


def read_bytes(text: str, flag: str) -> int:
    """Bytes of `24GiB` or `24GB`.

    Raises:
        PlanError: it is no amount above 0, or less than a device can have: its unit was left out.
    """
    try:
        found = int(_BYTES.validate_python(text.strip()))
    except ValidationError:
        found = 0
    if not 0 < found < 1 << 60:
        raise PlanError(f"{flag}: {text!r} is no amount of memory, such as 24GiB")
    if found < _LEAST_BYTES:
        raise PlanError(f"{flag}: {text!r} is {found} bytes: name a unit, such as 24GiB")
    return found


def read_types(text: str) -> KvTypes:
    """Read the types in `q8_0`, or in `q8_0,f16`: keys and values.

    Raises:
        PlanError: llama.cpp keeps no KV cache in one.
    """
    names = [name.strip() for name in text.split(",")]
    known = {str(name): name for name in NUMBER_TYPES}
    for name in names:
        if name not in known:
            raise PlanError(f"--kv-type: there is no {name!r}: it is one of {', '.join(known)}")
    if len(names) > 2:
        raise PlanError("--kv-type: must be one type, or those of keys and of values")
    return KvTypes(known[names[0]], known[names[-1]])


def plan(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The plan that is asked for, as JSON has it.

    Raises:
        PlanError: a flag cannot be; or the file cannot be read.
    """
    given = _parser().parse_args(arguments)
    gpus = [read_bytes(part, "--gpus") for part in given.gpus.split(",") if part.strip()]
    if len(gpus) > MOST_GPUS:
        raise PlanError(f"--gpus: at most {MOST_GPUS}")
    for flag, value, least, most in (
        ("--context", given.context, 0, MAX_TOKENS),
        ("--slots", given.slots, 1, MAX_SEQUENCES),
        ("--kv-cells", given.kv_cells, 0, MAX_TOKENS),
    ):
        if not least <= value <= most:
            raise PlanError(f"{flag}: must be {least} to {most}")
    types = read_types(given.kv_type)
    memory = read_bytes(given.memory, "--memory") if given.memory else free_bytes()
    try:
        file = read_model_file(given.file)
    except ModelFileError as error:
        raise PlanError(str(error)) from None
    projector_bytes = _projector_bytes(given.mmproj, given.file) if given.mmproj is not None else 0
    asked = Asked(given.context, given.slots, kv_cells=given.kv_cells, types=types)
    made = plan_devices(
        file.architecture,
        file.size_bytes,
        file.context_length,
        file.facts,
        asked,
        gpus,
        main_memory=memory,
        projector_bytes=projector_bytes,
    )
    devices = [asdict(device) | {"total": device.total, "fits": device.fits} for device in made.devices]
    return asdict(made) | {"devices": devices, "settings": made.settings}


def _projector_bytes(path: Path, model: Path) -> int:
    """Return the bytes of a projector that the model can have.

    Raises:
        PlanError: it cannot.
    """
    try:
        probing = probe_projection(path, model, most_whole=PHYSICAL_BATCH, field="--mmproj")
        return asyncio.run(probing).size_bytes
    except InvalidArgument as error:
        raise PlanError(f"--mmproj: {error.message}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The process: exits with 2 where something cannot be read."""
    try:
        found = plan(arguments)
    except PlanError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
