"""The environment that a systemd unit of InferFlux gives its service, read from the unit's files."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

_STATE = "/var/lib"
# Of LoadCredential=: the unit's name for it, which its paths begin with %d/ for.
_CREDENTIAL = re.compile(r"%d/([\w.-]+)")


def is_unit(path: Path) -> bool:
    """True if a path names a service's unit."""
    return path.suffix == ".service"


def environment_of(path: Path, read_file: Callable[[str, str], dict[str, str]]) -> dict[str, str]:
    """The variables that a unit sets: its own, then those of its files. A credential is where it is loaded
    from.

    Args:
        path: of the unit; of an instance, as in `inferflux-worker@0.service`, its template is read.
        read_file: gives the variables of a text, and raises for what is none; the second is its name.

    Raises:
        OSError: the unit, or a file that it needs, cannot be read.
    """
    lines = list(_lines(path))
    names = _specifiers(path.stem)

    def expanded(text: str) -> str:
        return re.sub(r"%([pijlS%])", lambda found: names[found[1]], text)

    def of(key: str) -> list[str]:
        return [value for name, value in lines if name == key]

    loaded = (expanded(value).partition(":") for value in of("LoadCredential"))
    credentials = {name: place for name, _, place in loaded}
    variables: dict[str, str] = {}
    for value in of("Environment"):
        for pair in shlex.split(value):
            name, _, given = pair.partition("=")
            variables[name] = expanded(
                _CREDENTIAL.sub(lambda found: credentials.get(found[1], found[0]), given)
            )
    for value in map(expanded, of("EnvironmentFile")):
        file = Path(value.removeprefix("-"))
        if file.exists() or not value.startswith("-"):
            variables |= read_file(file.read_text(), str(file))
    return variables


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Keys and values of a unit and of what is dropped in beside it."""
    template = path.with_name(re.sub(r"@[^@]+\.service$", "@.service", path.name))
    base = path if path.exists() else template
    drop_ins = [*template.with_name(f"{template.name}.d").glob("*.conf")]
    drop_ins += [] if template == path else path.with_name(f"{path.name}.d").glob("*.conf")
    for file in (base, *sorted(drop_ins, key=lambda one: one.name)):
        for line in file.read_text().replace("\\\n", " ").splitlines():
            if "=" in line and line[0] not in "#;":
                key, _, value = line.partition("=")
                yield key.strip(), value.strip()


def _specifiers(stem: str) -> dict[str, str]:
    prefix, _, instance = stem.partition("@")
    return {
        "p": prefix,
        "i": instance,
        "j": prefix.rpartition("-")[2],
        "l": socket.gethostname().partition(".")[0],
        "S": _STATE,
        "%": "%",
    }
