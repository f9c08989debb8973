"""docs/policy.md says what the code says."""

from __future__ import annotations

from inferflux.common.contract.callers.scopes import Scope
from inferflux.gateway.http.front.routes import ROUTES
from inferflux.policy.decide.roles import BUILTIN
from tools.reference import access
from tools.reference.__main__ import POLICY_PAGE, written_policy

TEXT = POLICY_PAGE.read_text()


def test_its_tables_are_those_of_the_code() -> None:
    assert written_policy(TEXT) == TEXT, "say `make docs`"


def test_every_scope_role_method_and_route_is_in_its_table() -> None:
    blocks = access.blocks()
    assert all(f"\n| `{scope}` |" in blocks["scopes"] for scope in Scope)
    assert all(f"\n| `{role}` |" in blocks["roles"] for role in BUILTIN)
    methods = blocks["scopes of methods"]
    for rules in access.methods().values():
        for path in rules:
            service, _, method = path.removeprefix("/").rpartition("/")
            assert f"\n| `{service.rpartition('.')[2]}/{method}` |" in methods
    assert all(f"\n| `{route.method} {route.path}` |" in methods for route in ROUTES)
