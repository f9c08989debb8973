"""Variables that no service reads, and values that services refuse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from inferflux.cli.doctor.finding import Finding, ok, problem, unknown, warning
from inferflux.cli.doctor.seen import ServiceSettings
from inferflux.common.process.settings import FILE_SUFFIX, nearly

_PREFIX = "INFERFLUX_"
# Read by inferctl and clients.
OF_CLIENTS = frozenset(
    {"INFERFLUX_ENDPOINT", "INFERFLUX_API_KEY", "INFERFLUX_USE_PROXY", "INFERFLUX_STATE_DIR"}
)
# Read by the compose files alone, as docs/deploy.md has them.
OF_COMPOSE = frozenset(
    _PREFIX + name
    for name in (
        *("DRAFT_MODEL_FILE", "GATEWAY_HTTP_PORT", "GATEWAY_PORT", "MODEL_FILE", "NATS_PORT"),
        *("OTHER_GATEWAY_HTTP_PORT", "OTHER_GATEWAY_PORT", "POLICY_PORT", "SHARED_MEMORY", "WORKER_MEMORY"),
    )
)


def decide(
    settings: Mapping[str, ServiceSettings], named: Collection[str], checked: Collection[str]
) -> Iterator[Finding]:
    """Findings about the variables of an environment.

    Args:
        settings: of every service that is installed, by its name.
        named: all names of the environment that have a value.
        checked: the services that it is for.
    """
    bad = dict.fromkeys(line for service in checked for line in settings[service].bad)
    for line in bad:
        yield problem("settings", line, "change the value, or leave the variable out: docs/operations.md")
    known = {name for one in settings.values() for name in one.variables} | OF_CLIENTS | OF_COMPOSE
    unread = [
        name
        for name in sorted(named)
        if name.startswith(_PREFIX) and name not in known and name.removesuffix(FILE_SUFFIX) not in known
    ]
    absent = [service for service, one in settings.items() if one.failure]
    meant = nearly(known, unread)
    gone = " ".join(bad)
    for name in unread:
        if name in meant:
            yield warning("settings", f"{name}: no service reads it", f"is {meant[name]} meant?")
        elif name not in gone and not any(name.startswith(f"{_PREFIX}{one.upper()}_") for one in absent):
            yield warning(
                "settings", f"{name}: no service reads it", "leave it out: docs/operations.md has all"
            )
    for service in checked:
        if failure := settings[service].failure:
            is_absent = failure == "not installed"
            remedy = f"install inferflux-{service} where it is to run" if is_absent else "install it anew"
            yield unknown("settings", f"{service}: {failure}", remedy)
    if not bad and not unread and len(absent) < len(settings):
        given = sum(name.startswith(_PREFIX) for name in named)
        yield ok("settings", f"{given} variables, and each is known")
