"""What the fuzzer draws: the same for the same seed, and messages of every method."""

from __future__ import annotations

import json
import random
from contextlib import suppress

from google.protobuf.message import DecodeError

from benchmarks.fuzz.findings import Findings
from benchmarks.fuzz.messages import Messages
from benchmarks.fuzz.methods import methods
from benchmarks.fuzz.routes import Bodies, client_routes, known_fields
from inferflux.gateway.http.front.routes import ADMIN, ROUTES


def test_a_seed_draws_the_same_messages() -> None:
    def drawn(seed: int) -> list[bytes]:
        messages = Messages(random.Random(seed))
        return [messages.draw(method.request) for method in methods()]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_every_method_of_both_servers_gets_messages_that_can_be_decoded_and_some_that_cannot() -> None:
    messages = Messages(random.Random(1))
    for method in methods():
        kind = type(method.request())
        n_decoded = n_refused = 0
        for _ in range(200):
            try:
                kind.FromString(messages.draw(method.request))
            except DecodeError:
                n_refused += 1
            else:
                n_decoded += 1
        assert n_decoded > 100, method.path
        assert n_refused, method.path
    assert {"gateway", "policy"} == {method.server for method in methods()}
    assert {"/inferflux.v1.InferenceService/Chat", "/grpc.health.v1.Health/Check"} <= {
        method.path for method in methods()
    }


def test_calls_of_administrators_are_audited_and_over_http() -> None:
    found = {(method.server, method.name): method for method in methods()}
    assert found["gateway", "CreateApiKey"].is_audited
    assert found["gateway", "CreateApiKey"].is_over_http
    assert not found["policy", "CreateApiKey"].is_over_http
    assert not found["policy", "Admit"].is_audited
    assert not found["gateway", "Check"].is_audited
    assert ("gateway", "Admit") not in found
    assert {method.name for method in methods() if method.is_over_http} == set(ADMIN)


def test_a_call_that_was_answered_needs_an_audit_line() -> None:
    findings = Findings(answered={"a": "x", "b": "y"})
    assert findings.unaudited({"b", "c"}) == ["a: x"]


def test_every_route_is_called_as_an_rpc_or_by_its_path() -> None:
    assert len(client_routes()) + len(ADMIN) == len(ROUTES)
    assert {"model", "messages", "documents", "tool_choice", "image_url"} <= set(known_fields())


def test_bodies_of_routes_are_mostly_json_that_names_the_model() -> None:
    bodies = Bodies(random.Random(1), "served")
    drawn = [bodies.draw(route) for route in client_routes() for _ in range(50)]
    found = []
    for call in drawn:
        with suppress(ValueError):
            found.append(json.loads(call.body))
    n_posts = sum(call.method != "GET" for call in drawn)
    assert n_posts * 0.5 < sum(each.get("model") == "served" for each in found) < n_posts
    assert len(found) < n_posts
