"""The rules of rooms (pure): which room imports which, how wide a folder is, how long a file or a class."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .graph import Arrow, ordered, pointing_up
from .source import Module

FOLDER_MODULES = 20
FILE_LINES = 450
CLASS_LINES = 400
IMPORTS = 30
APP_IMPORTS = 40

# What is imported under another name than that of its distribution.
_DISTRIBUTED_AS = {
    "PIL": "pillow",
    "ahocorasick": "pyahocorasick",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "grpc_status": "grpcio-status",
    "inferflux.v1": "inferflux-api",
    "jwt": "pyjwt",
    "llama_cpp": "llama-cpp-python",
    "nats": "nats-py",
    "opentelemetry": "opentelemetry-api",
    "re2": "google-re2",
    "yaml": "pyyaml",
}
# Distributions from the top down: one imports others below it alone.
_LEVELS = ["cli", "convert", "gateway", "scheduler", "worker", "policy", "client", "common", "api"]
Projects = Mapping[str, Mapping[str, Any]]


def room_of(name: str, rooms: Iterable[str]) -> str | None:
    """The room that holds a module: the longest of ``rooms`` whose name its own begins with."""
    short = f"{name.removeprefix('inferflux.')}."
    return max((room for room in rooms if short.startswith(f"{room}.")), key=len, default=None)


def folders(modules: Iterable[Module]) -> dict[str, int]:
    """Every folder as a room, with the number of its modules; an `__init__.py` is none."""
    found = Counter({module.name.removeprefix("inferflux."): 0 for module in modules if module.is_package})
    found.update(
        module.name.removeprefix("inferflux.").rpartition(".")[0]
        for module in modules
        if not module.is_package
    )
    return dict(found)


def arrows(modules: Iterable[Module], rooms: Iterable[str]) -> dict[Arrow, set[Arrow]]:
    """Pairs of rooms of which one imports the other, each with its (importer, imported) modules."""
    modules, rooms = list(modules), list(rooms)
    home = {module.name: room_of(module.name, rooms) for module in modules}
    found: dict[Arrow, set[Arrow]] = defaultdict(set)
    for module in modules:
        for name in module.imports:
            imported = name if name in home else name.rpartition(".")[0]
            here, there = home[module.name], home.get(imported)
            if here and there and here != there:
                found[here, there].add((module.name, imported))
    return dict(found)


def drafted(modules: Iterable[Module]) -> dict[str, list[str]]:
    """`MAY_IMPORT` as the tree has it, from the top down, without the arrows that point up.

    In a folder that is not wide and has folders in it, every module is a room of its own.
    """
    modules = list(modules)
    rooms = folders(modules)
    for room, number in list(rooms.items()):
        if number <= FOLDER_MODULES and any(other.startswith(f"{room}.") for other in rooms):
            names = (m.name.removeprefix("inferflux.") for m in modules if not m.is_package)
            rooms |= {name: 1 for name in names if name.rpartition(".")[0] == room}
    found = arrows(modules, rooms)
    order = ordered({arrow: len(imports) for arrow, imports in found.items()})
    order += [room for room in rooms if room not in order]
    order.sort(key=lambda room: _LEVELS.index(room.partition(".")[0]))
    down = set(found) - pointing_up(found, order)
    return {room: [other for other in order if (room, other) in down] for room in order}


def violations(
    modules: Iterable[Module], may_import: Mapping[str, list[str]], projects: Projects
) -> dict[str, list[str]]:
    """All that breaks a rule, by rule.

    Args:
        projects: `[project]` of the pyproject.toml of each distribution, by its folder.
    """
    modules = list(modules)
    rooms = folders(modules)
    names = {module.name.removeprefix("inferflux."): module for module in modules}
    found = {
        "no room": set(rooms) ^ {room for room in may_import if room in rooms or room not in names},
        "no purpose": {
            room for room in rooms if room not in names or not ast.get_docstring(names[room].tree)
        },
        "arrow": _forbidden(modules, may_import),
        "wide folder": {room for room, number in rooms.items() if number > FOLDER_MODULES},
        "long file": {module.path for module in modules if module.lines > FILE_LINES},
        "long class": {
            f"{module.path}: {node.name}"
            for module in modules
            for node in module.classes
            if length(node) > CLASS_LINES
        },
        "many imports": {
            module.path for module in modules if module.import_statements > most_imports(module)
        },
        "undeclared": set(_undeclared(modules, projects)),
    }
    return {rule: sorted(broken) for rule, broken in found.items()}


def most_imports(module: Module) -> int:
    """How many import statements it may have: an `app.py` puts a service together."""
    return APP_IMPORTS if module.path.endswith("/app.py") else IMPORTS


def length(node: ast.ClassDef) -> int:
    """Lines of a class, its decorators aside."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _forbidden(modules: list[Module], may_import: Mapping[str, list[str]]) -> set[str]:
    return {
        f"{importer.removeprefix('inferflux.')} -> {there}"
        for (here, there), imports in arrows(modules, may_import).items()
        if there not in may_import[here]
        for importer, _imported in imports
    }


def out_of_order(may_import: Mapping[str, list[str]]) -> list[str]:
    """Arrows of `MAY_IMPORT` to a room that is not below. Without any, it has no circle."""
    place = {room: number for number, room in enumerate(may_import)}
    return [
        f"{room} -> {other}"
        for room, others in may_import.items()
        for other in others
        if place.get(other, -1) <= place[room]
    ]


def _undeclared(modules: Iterable[Module], projects: Projects) -> Iterator[str]:
    """`distribution: package` where neither it nor one of ours that it needs declares the package."""
    declared = {folder: _declared(project) for folder, project in projects.items()}
    names = {project["name"]: folder for folder, project in projects.items()}
    for module in modules:
        known: set[str] = set()
        waiting = [str(projects[module.distribution]["name"])]
        while waiting:
            name = waiting.pop()
            known.add(name)
            if name in names:
                waiting += declared[names[name]] - known
        for name in module.imports:
            package = _distribution_of(name)
            if package and package not in known:
                yield f"{module.distribution}: {package}"


def _declared(project: Mapping[str, Any]) -> set[str]:
    """Names of the distributions that it needs, those of its extras as well."""
    lists = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    return {re.split(r"[\[<>=!~; ]", entry)[0].lower() for entries in lists for entry in entries}


def _distribution_of(name: str) -> str | None:
    """The distribution that an import comes from; None for Python's own."""
    top, two = name.partition(".")[0], ".".join(name.split(".")[:2])
    if top in sys.stdlib_module_names:
        return None
    return _DISTRIBUTED_AS.get(two) or _DISTRIBUTED_AS.get(top) or _plain(two if top == "inferflux" else top)


def _plain(name: str) -> str:
    return re.sub(r"[._]", "-", name).lower()
