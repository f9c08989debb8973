"""The environment of an installation, of files or of this process, and the settings of its services."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inferflux.cli.doctor.seen import ServiceSettings
from inferflux.cli.reach.errors import CommandError

from . import units
from .children import ChildError, ask

_REPORT = "inferflux.common.process.settings_report"
# Where each service has its settings.
SETTINGS = {
    "gateway": "inferflux.gateway.settings:GatewaySettings",
    "policy": "inferflux.policy.settings:PolicySettings",
    "scheduler": "inferflux.scheduler.settings:SchedulerSettings",
    "worker": "inferflux.worker.settings:WorkerSettings",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("INFERFLUX_", "OTEL_EXPORTER_OTLP_")


def parse(text: str, path: str) -> dict[str, str]:
    """Variables of lines `NAME=value`, as systemd and compose read them, or `export NAME=value` of a shell.

    Raises:
        CommandError: a line is neither; names it, without its value.
    """
    found = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line[0] in "#;":
            continue
        name, separator, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        try:
            value = "".join(shlex.split(value)) if value[:1] in ("'", '"') else value
        except ValueError:
            separator = ""
        if not separator or not _NAME.fullmatch(name):
            raise CommandError(f"{path}, line {number}: not NAME=value (--env-file)")
        found[name] = value
    return found


def _variables(path: Path) -> dict[str, str]:
    return parse(path.read_text(), str(path))


def read(files: Iterable[Path], own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service that has these files, the later ones first; without any, `own`. What is
    not a setting of InferFlux is `own`'s in any case.

    Raises:
        CommandError: a file cannot be read.
    """
    files = list(files)
    if not files:
        return dict(own)
    found = {name: value for name, value in own.items() if not name.startswith(_OURS)}
    for path in files:
        try:
            found |= units.environment_of(path, parse) if units.is_unit(path) else _variables(path)
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read {path}: {error} (--env-file)") from None
    return found


async def settings_of(env: Mapping[str, str]) -> dict[str, ServiceSettings]:
    """The settings of every service, as its own code reads them from an environment."""
    try:
        reports = await ask(_REPORT, *SETTINGS.values(), env=env)
    except ChildError as error:
        return dict.fromkeys(SETTINGS, ServiceSettings(failure=str(error)))
    return {service: _settings_in(reports[place], service) for service, place in SETTINGS.items()}


def _settings_in(report: Mapping[str, Any], service: str) -> ServiceSettings:
    if failure := report.get("failure", ""):
        is_missing = f"No module named 'inferflux.{service}'" in failure
        return ServiceSettings(failure="not installed" if is_missing else failure)
    return ServiceSettings(tuple(report["variables"]), tuple(report["bad"]), report["values"])
