"""Who may do what, as Markdown tables: scopes, roles, and the scope that each method and route needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inferflux.common.calls.grpc_rules import OPEN_RULES, MethodRule
from inferflux.common.calls.service_key import SERVICE
from inferflux.common.contract.callers.scopes import SCOPES, expanded
from inferflux.gateway.grpc.rules import rules as gateway_rules
from inferflux.gateway.http.front.routes import ROUTES
from inferflux.policy.decide.oidc.issuer import Issuer
from inferflux.policy.decide.roles import BUILTIN
from inferflux.policy.rules import RULES as POLICY_RULES

from .markdown import entries, table
from .settings import described, stated_default

_NONE = "none"
_SERVICES = "service key"


def blocks() -> dict[str, str]:
    """The tables by the name of their place in the page."""
    return {
        "scopes": table(("scope", "for", "includes"), _scopes()),
        "fields of an issuer": entries(_issuer_fields()),
        "roles": table(("role", "scopes", "for"), _roles()),
        "scopes of methods": table(("method or route", "served by", "needs"), _methods()),
    }


def methods() -> dict[str, Mapping[str, MethodRule]]:
    """The rules of all gRPC methods, by what serves them."""
    return {"gateway": {**gateway_rules(0), **OPEN_RULES}, "policy": {**POLICY_RULES, **OPEN_RULES}}


def _scopes() -> Iterable[tuple[str, ...]]:
    for scope, meaning in SCOPES.items():
        included = [f"`{other}`" for other in SCOPES if other in expanded([scope]) - {scope}]
        yield f"`{scope}`", meaning, ", ".join(included)


def _roles() -> Iterable[tuple[str, ...]]:
    for role in BUILTIN.values():
        yield f"`{role.name}`", ", ".join(f"`{scope}`" for scope in role.scopes), role.description


def _issuer_fields() -> Iterable[tuple[str, ...]]:
    for name, field in Issuer.model_fields.items():
        yield f"`{name}`", stated_default(field), described(name, field)


def _methods() -> Iterable[tuple[str, ...]]:
    served: dict[tuple[str, str], list[str]] = {}
    for server, rules in methods().items():
        for path, rule in rules.items():
            service, _, method = path.removeprefix("/").rpartition("/")
            name = f"`{service.rpartition('.')[2]}/{method}`"
            served.setdefault((name, _needs(rule.scope)), []).append(server)
    for (name, needs), servers in served.items():
        yield name, ", ".join(servers), needs
    for route in ROUTES:
        yield f"`{route.method} {route.path}`", "gateway", _needs(route.scope or "")


def _needs(scope: str) -> str:
    return _SERVICES if scope == SERVICE else f"`{scope}`" if scope else _NONE
