"""The decision backends that settings ask for, put together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.http.http_client import HttpClient
from inferflux.common.process import logs
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.setting_kinds import listed
from inferflux.policy.metrics import DecisionMetrics

from .chain import Asked, Decisions
from .facts import Backend
from .opa import Opa
from .settings import BUILTIN, CEDAR, CEDAR_POLICIES, DECISIONS, OPA, DecisionSettings

log = logs.get()

Work = Callable[[Shutdown], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of `open_decisions`.

    Attributes:
        decisions: None where policy decides alone.
        work: to be run beside the service, until the shutdown; None: there is none.
    """

    decisions: Decisions | None = None
    work: Work | None = None


def open_decisions(settings: DecisionSettings, http: HttpClient) -> Opened:
    """The backends of the settings.

    Args:
        http: asks OPA.

    Raises:
        InvalidArgument: a file cannot be used, or what a backend needs is not installed.
    """
    order = settings.decision_order
    if order == [BUILTIN]:
        return Opened()
    metrics = DecisionMetrics()
    asked: dict[str, Asked] = {}
    work: Work | None = None

    def add(backend: Backend) -> Asked:
        asked[backend.name] = made = Asked(
            backend,
            metrics,
            timeout_s=settings.decision_timeout_s,
            cache_s=settings.decision_cache_s,
            is_fail_open=backend.name in listed(settings.decisions_fail_open),
        )
        return made

    if OPA in order:
        token, timeout_s = settings.opa_token.get_secret_value(), settings.decision_timeout_s
        add(Opa(http, settings.opa_url, token=token, timeout_s=timeout_s))
    if CEDAR in order:
        work = _open_cedar(settings, metrics, add)
    for name in listed(settings.decisions_fail_open):
        log.warning("calls are PERMITTED where this decision backend does not decide", backend=name)
    at = order.index(BUILTIN)
    return Opened(
        Decisions(
            [asked[name] for name in order[:at]],
            [asked[name] for name in order[at + 1 :]],
            wants_text=OPA in order and settings.opa_sees_text,
        ),
        work,
    )


def _open_cedar(
    settings: DecisionSettings, metrics: DecisionMetrics, add: Callable[[Backend], Asked]
) -> Work:
    if find_spec("cedarpy") is None:
        message = f"{DECISIONS} names cedar, and cedarpy is not installed: inferflux-policy[cedar] has it"
        raise InvalidArgument(message, field=DECISIONS)
    from .cedar import Cedar
    from .cedar_files import CedarFiles, CedarReload

    if settings.cedar_policies is None:
        raise InvalidArgument(f"{CEDAR_POLICIES} must be set", field=CEDAR_POLICIES)
    files = CedarFiles(settings.cedar_policies, settings.cedar_entities)
    stamp = files.stamp()
    try:
        backend = Cedar(files.read())
    except ValueError as error:
        raise InvalidArgument(f"{CEDAR_POLICIES}: {error}", field=CEDAR_POLICIES) from None
    reload = CedarReload(files, stamp, backend, metrics, on_change=add(backend).forget)
    return reload.run_until
