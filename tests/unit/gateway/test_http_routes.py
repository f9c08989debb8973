"""Every path that the HTTP front serves has a rule, and every RPC of administrators a path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, WebSocketRoute

from inferflux.gateway.grpc.rules import ADMIN_METHODS, ADMIN_RULES, rules
from inferflux.gateway.http.app import build_app
from inferflux.gateway.http.docs.openapi import OPERATIONS
from inferflux.gateway.http.front.routes import ADMIN, ROUTES, UNDESCRIBED
from inferflux.gateway.operator.admin_methods import AdminMethod


def served() -> list[tuple[str, str]]:
    """Kind and path of everything that is served."""
    part = cast("Any", SimpleNamespace(tokens=None))
    methods = [AdminMethod.of(method, part) for method in ADMIN_METHODS]
    app = build_app(part, part, part, part, part, part, part, methods, cors_origins=())
    router: Any = cast("CORSMiddleware", app).app
    assert all(isinstance(route, Route | WebSocketRoute) for route in router.routes)
    return sorted((type(route).__name__, route.path) for route in router.routes)


def test_every_path_that_is_served_has_a_rule() -> None:
    kinds = {"WEBSOCKET": "WebSocketRoute"}
    assert served() == sorted((kinds.get(rule.method, "Route"), rule.path) for rule in ROUTES)


def test_every_rpc_of_administrators_is_a_path_with_its_scope() -> None:
    assert {f"/v1/admin/{method.name}" for method in ADMIN_METHODS} == {r.path for r in ADMIN.values()}
    assert len(ADMIN) == len(ADMIN_METHODS) == len(ADMIN_RULES)
    own = {"InferenceService", "EmbeddingService", "ModelService", "ServerReflection"}
    theirs = {path for path in rules(1000) if path.split("/")[1].rpartition(".")[2] not in own}
    changes = (
        "LoadModel",
        "UnloadModel",
        "AddAdapter",
        "RemoveAdapter",
        "Pull",
        "RemoveModel",
        "VerifyModel",
    )
    theirs |= {f"/inferflux.v1.ModelService/{name}" for name in changes}
    assert theirs == set(ADMIN_RULES)
    assert {name: rule.scope for name, rule in ADMIN.items()} == {
        path.rpartition("/")[2]: rule.scope for path, rule in ADMIN_RULES.items()
    }


def test_every_path_is_described() -> None:
    described = {(operation.method.upper(), operation.path) for operation in OPERATIONS}
    paths = {(rule.method, rule.path.replace(":path}", "}")) for rule in ROUTES}
    assert paths - described == {
        ("WEBSOCKET", "/generate"),
        ("GET", "/openapi.json"),
        *((rule.method, rule.path) for rule in UNDESCRIBED),
    }
