"""`python -m inferflux.common.process.settings_report MODULE:CLASS ...`: settings of services, as a line of
JSON.

For programs that look at services without importing them. Values have URLs with their passwords: the line is
for the program that asked.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from .gone_settings import refusals
from .settings import FILE_SUFFIX, BadSettings, ServiceSettings, read, variables


def report(cls: type[ServiceSettings]) -> dict[str, Any]:
    """The variables of a service, the lines about bad ones, and the values of the others.

    Bad variables are taken out of the environment of this process.
    """
    bad = refusals(os.environ)
    values: dict[str, Any] = {}
    while not values:
        try:
            values = _values(cls)
        except BadSettings as error:
            bad += [line for _, line in error.lines]
            names = {variable.removesuffix(FILE_SUFFIX) for variable, _ in error.lines}
            taken_out = [os.environ.pop(f"{name}{end}", None) for name in names for end in ("", FILE_SUFFIX)]
            if not any(taken_out):  # values that do not fit each other
                values = _as_given(cls)
    return {"variables": sorted(variables(cls)), "bad": bad, "values": values}


def _values(cls: type[ServiceSettings]) -> dict[str, Any]:
    fields = read(cls).model_dump(mode="json")
    return {variable: fields[name] for variable, name in variables(cls).items()}


def _as_given(cls: type[ServiceSettings]) -> dict[str, Any]:
    """Values as the environment has them, else the defaults."""
    fields = {variable: cls.model_fields[name] for variable, name in variables(cls).items()}
    plain = {name: one.default for name, one in fields.items() if isinstance(one.default, str | int | float)}
    return {name: os.environ.get(name) or plain.get(name) for name in fields}


def main() -> None:
    """Write the report of each class that is named, or why it cannot be imported."""
    environment, reports = dict(os.environ), {}
    for place in sys.argv[1:]:
        module, _, name = place.partition(":")
        try:
            reports[place] = report(getattr(importlib.import_module(module), name))
        except ImportError as error:
            reports[place] = {"failure": str(error)}
        os.environ.clear()
        os.environ.update(environment)
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
