"""Commands whose flags are the fields of dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Commands(typer.Typer):
    """Commands whose parameters may be such dataclasses."""

    def command(self, *args: Any, **options: Any) -> Callable[[_Command], _Command]:
        register = super().command(*args, **options)

        def add(command: _Command) -> _Command:
            register(with_flag_groups(command))
            return command

        return add


def with_flag_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of its parameters' dataclasses in place of these parameters.

    Args:
        command: its group parameters are keyword-only; it is called with the groups made.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }

    @wraps(command)
    def run(**given: Any) -> None:
        made = {n: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for n, kind in groups.items()}
        command(**given, **made)

    parameters: list[inspect.Parameter] = []
    for parameter in _parameters(command):
        group = groups.get(parameter.name)
        parameters += [parameter] if group is None else _parameters(group)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(of: Callable[..., object]) -> list[inspect.Parameter]:
    """Parameters of a command as keywords, with their annotations evaluated."""
    hints = get_type_hints(of, include_extras=True)
    signature = inspect.signature(of)
    return [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name])
        for p in signature.parameters.values()
    ]
