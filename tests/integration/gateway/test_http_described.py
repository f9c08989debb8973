"""/openapi.json describes what is served: schemathesis calls every path with good and bad requests."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import requests
import schemathesis
from harness.gateway import Backend, GatewayProcess, StartGateway
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

from inferflux.common.servers import ServerProcess
from inferflux.gateway.http.openapi import OPERATIONS, document

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
EXAMPLES = 25
PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/generate": {"prompt": "hello"},
    "/v1/tokenize": {"prompt": "hello"},
    "/v1/detokenize": {"tokens": [300]},
}
NAMES = [f"{operation.method.upper()} {operation.path}" for operation in OPERATIONS]


@pytest.fixture(scope="module")
def described() -> Any:
    return schemathesis.openapi.from_dict(document())


@pytest.fixture
async def answering(
    start_gateway: StartGateway, private_nats: ServerProcess, private_backend: Backend
) -> AsyncIterator[GatewayProcess]:
    """A gateway of which every request is answered with two tokens."""
    gateway = await start_gateway(private_nats.url)
    task = asyncio.create_task(_answer_all(private_backend))
    yield gateway
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _answer_all(backend: Backend) -> None:
    answered: set[str] = set()
    while True:
        for request_id, job in list(backend.jobs.items()):
            if request_id not in answered:
                answered.add(request_id)
                await backend.finish(job, n=2)
        await asyncio.sleep(0.002)


def _checked(
    described: Any, name: str, mode: GenerationMode, call: Callable[[Case[Any]], None]
) -> Callable[[], None]:
    """A run of examples of one operation; the same ones every time."""
    method, path = name.split()
    strategy = described[path][method].as_strategy(generation_mode=mode)

    numbers = itertools.count()

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE:
            _name_model(case)
            if next(numbers) % 2:
                _make_plain(case)
        call(case)

    return run


def _name_model(case: Case[Any]) -> None:
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = "demo"
    if "model" in (case.path_parameters or {}):
        case.path_parameters["model"] = "demo"


def _make_plain(case: Case[Any]) -> None:
    """Leave what an answer needs: most of what the types allow is refused for its range."""
    needed = PLAIN.get(case.operation.path)
    if needed is not None and isinstance(case.body, dict):
        kept = {name: value for name, value in case.body.items() if name in ("stream", "stream_options")}
        case.body = {"model": "demo", **kept, **needed}


@pytest.mark.parametrize("name", NAMES)
async def test_good_requests_are_answered_as_described(
    answering: GatewayProcess, described: Any, name: str, key: str
) -> None:
    statuses = await _run(answering, described, name, GenerationMode.POSITIVE, key)
    assert 200 in statuses


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("POST")])
async def test_bad_requests_are_refused_as_described(
    answering: GatewayProcess, described: Any, name: str, key: str
) -> None:
    statuses = await _run(answering, described, name, GenerationMode.NEGATIVE, key)
    assert 400 in statuses


async def _run(
    gateway: GatewayProcess, described: Any, name: str, mode: GenerationMode, key: str
) -> Counter[int]:
    """Call and check; how often there was which status."""
    statuses = Counter[int]()
    session = requests.Session()

    def call(case: Case[Any]) -> None:
        case.headers["Authorization"] = f"Bearer {key}"
        answer = case.call_and_validate(
            base_url=f"http://127.0.0.1:{gateway.http_port}", session=session, checks=CHECKS, timeout=20
        )
        statuses[answer.status_code] += 1

    await asyncio.to_thread(_checked(described, name, mode, call))
    session.close()
    assert not [line for line in gateway.log_lines() if line.get("level") == "error"]
    return statuses
