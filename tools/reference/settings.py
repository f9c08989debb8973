"""The environment variables of each service, as Markdown lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from inferflux.common.process.settings import ORDINARY, ServiceSettings, unique_name
from inferflux.gateway.settings import GatewaySettings
from inferflux.policy.settings import PolicySettings
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.worker.settings import WorkerSettings
from tools.house.measures import FOR_EXPERTS

from .markdown import entries

SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "policy": PolicySettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
}

_FACTORIES: dict[Callable[..., Any], str] = {unique_name: "host and six hex digits", dict: "`{}`"}


def variables(cls: type[ServiceSettings]) -> dict[str, FieldInfo]:
    """Every environment variable of a settings class, with its field."""
    prefix = cls.model_config.get("env_prefix", "")
    return {
        f.validation_alias if isinstance(f.validation_alias, str) else f"{prefix}{name}".upper(): f
        for name, f in cls.model_fields.items()
    }


def own_variables(service: str) -> dict[str, FieldInfo]:
    """Those of one service that not every service has."""
    common = variables(ServiceSettings)
    return {v: f for v, f in variables(SETTINGS[service]).items() if v not in common}


def blocks() -> dict[str, str]:
    """The lists by the name of their place in the page."""
    common = {"settings of every service": lists(variables(ServiceSettings))}
    return common | {f"settings of the {service}": lists(own_variables(service)) for service in SETTINGS}


def lists(fields: dict[str, FieldInfo]) -> str:
    """The list of a service's variables, then that of those for experts.

    Raises:
        ValueError: a field has no description.
    """
    ordinary = {v: f for v, f in fields.items() if f.json_schema_extra == ORDINARY}
    expert = {v: f for v, f in fields.items() if v not in ordinary}
    return f"{entries(_rows(ordinary))}\n\n{FOR_EXPERTS}\n\n{entries(_rows(expert))}"


def _rows(fields: dict[str, FieldInfo]) -> Iterable[tuple[str, ...]]:
    for variable, field in fields.items():
        yield (f"`{variable}`", stated_default(field), allowed_text(field), described(variable, field))


def described(name: str, field: FieldInfo) -> str:
    """What it means.

    Raises:
        ValueError: nothing says so.
    """
    if not field.description:
        raise ValueError(f"{name} has no description")
    return field.description


def stated_default(field: FieldInfo) -> str:
    """The default as a fact of a list's entry."""
    return default_text(field) if field.is_required() else f"default: {default_text(field)}"


def default_text(field: FieldInfo) -> str:
    """The default, as the page says it."""
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return _FACTORIES[field.default_factory]
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    if value is None:
        return "unset"
    return _value(value) if value or isinstance(value, int | float) else "empty"


def allowed_text(field: FieldInfo) -> str:
    """The values that are accepted, as far as type and bounds of the field say."""
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(_value(value) for value in get_args(annotation) if value != "")
    if annotation is bool:
        return "`true`, `false`"
    bounds = {type(bound): bound for bound in field.metadata}
    if Ge in bounds and Le in bounds:
        return f"{_number(bounds[Ge].ge)} to {_number(bounds[Le].le)}"
    signs = {Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<")}
    found = [
        f"{sign} {_number(getattr(bounds[kind], name))}"
        for kind, (name, sign) in signs.items()
        if kind in bounds
    ]
    return ", ".join(found)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
