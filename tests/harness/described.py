"""Calls of an operation as the OpenAPI document has it: schemathesis draws them and checks the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import requests
from harness.gateway import GatewayProcess
from harness.profiles import examples
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

# Not: that data which matches is accepted. The document gives types, not every range and combination.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    ignored_auth,
    unsupported_method,
]
# Each is a request to a gateway.
EXAMPLES = examples(25, fewest=5)


async def call_described(
    gateway: GatewayProcess,
    described: Any,
    name: str,
    mode: GenerationMode,
    key: str,
    *,
    prepare: Callable[[Case[Any]], None] = lambda _: None,
) -> Counter[int]:
    """Call and check, the same examples every time; how often there was which status.

    Args:
        described: the document, as schemathesis reads it.
        name: method and path.
        prepare: changes an example before it is sent.
    """
    statuses = Counter[int]()
    method, path = name.split()
    session = requests.Session()

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described[path][method].as_strategy(generation_mode=mode))
    def run(case: Case[Any]) -> None:
        prepare(case)
        case.headers["Authorization"] = f"Bearer {key}"
        answer = case.call_and_validate(
            base_url=f"http://127.0.0.1:{gateway.http_port}", session=session, checks=CHECKS, timeout=20
        )
        statuses[answer.status_code] += 1

    await asyncio.to_thread(run)
    session.close()
    assert not [line for line in gateway.log_lines() if line.get("level") == "error"]
    return statuses
