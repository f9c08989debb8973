"""docker-compose.yml, Dockerfiles and .dockerignore, read far enough to compare them with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILES = [
    ROOT / name for name in ("docker-compose.yml", "docker-compose.fleet.yml", "deploy/publish.yml")
]

_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::([-+])([^}]*))?\}")


@dataclass
class Stage:
    """One FROM of a Dockerfile.

    Attributes:
        modes: the --chmod of each of `copies`, empty without one.
        mounts: the --mount of RUN instructions that have one.
    """

    base: str
    name: str
    env: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[list[str], str]] = field(default_factory=list)
    copies_from: list[tuple[str, str, str]] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    user: str = ""
    healthcheck: str = ""
    command: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)


def read_dockerfile(path: Path) -> list[Stage]:
    """The stages of a Dockerfile; fails on an instruction it does not know."""
    text = re.sub(r"\\\n\s*", " ", "\n".join(x for x in path.read_text().splitlines() if x[:1] != "#"))
    stages: list[Stage] = []
    for line in filter(None, (x.strip() for x in text.splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base, name))
        elif keyword not in {"ARG", "VOLUME"}:
            _apply(stages[-1], keyword, rest.strip())
    return stages


def _apply(stage: Stage, keyword: str, rest: str) -> None:
    match keyword:
        case "ENV":
            pairs = re.findall(r'([A-Z_]+)=("[^"]*"|\S+)', rest)
            stage.env |= {name: value.strip('"') for name, value in pairs}
        case "COPY" if rest.startswith("--from="):
            origin, source, target = rest.removeprefix("--from=").split()
            stage.copies_from.append((origin, source, target))
        case "COPY":
            options, words = _options(rest)
            *sources, target = words.split()
            stage.copies.append((sources, target))
            stage.modes.append(options.get("chmod", ""))
        case "RUN":
            options, command = _options(rest)
            stage.runs.append(command)
            stage.mounts += [options["mount"]] if "mount" in options else []
        case "EXPOSE":
            stage.ports += [int(port) for port in rest.split()]
        case "USER":
            stage.user = rest
        case "HEALTHCHECK":
            stage.healthcheck = rest
        case "CMD":
            stage.command = json.loads(rest)
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        case _:
            raise AssertionError(f"unknown instruction {keyword}")


def _options(rest: str) -> tuple[dict[str, str], str]:
    """The leading --name=value of an instruction, and what follows."""
    options = {}
    while found := re.match(r"--([a-z]+)=(\S+)\s+", rest):
        options[found[1]] = found[2]
        rest = rest[found.end() :]
    return options, rest


def read_compose(environment: Mapping[str, str], file: str = "docker-compose.yml") -> dict[str, Any]:
    """A compose file with ${NAME:-default} and ${NAME:+instead} replaced as `docker compose` does it."""

    def chosen(found: re.Match[str]) -> str:
        value, sign, text = environment.get(found[1], ""), found[2], found[3] or ""
        return text if (sign == "+") == bool(value) else value

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(chosen, value)
        if isinstance(value, dict):
            return {k: replaced(v) for k, v in value.items()}
        return [replaced(v) for v in value] if isinstance(value, list) else value

    document: dict[str, Any] = replaced(yaml.safe_load((ROOT / file).read_text()))
    return document


def is_in_build_context(path: str) -> bool:
    """Whether .dockerignore lets a path through: the last line that matches it or a folder above decides."""
    is_in = True
    parts = path.strip("/").split("/")
    prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        name = pattern.removeprefix("!")
        if name.startswith("**/"):
            matches = any(fnmatch(part, name.removeprefix("**/")) for part in parts)
        else:
            matches = any(fnmatch(p, name) and p.count("/") == name.count("/") for p in prefixes)
        if matches:
            is_in = pattern.startswith("!")
    return is_in
