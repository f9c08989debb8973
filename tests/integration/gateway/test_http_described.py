"""/openapi.json describes what is served: schemathesis calls every path with good and bad requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import schemathesis
from harness.described import call_described
from harness.gateway import Backend, Client, GatewayProcess
from harness.policy import PolicyProcess
from harness.servers import ServerProcess
from schemathesis import Case, GenerationMode

from inferflux.common.bus import Bus
from inferflux.common.process.tasks import cancel_all
from inferflux.gateway.http.docs.openapi import OPERATIONS, document
from inferflux.v1 import model_pb2

PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/generate": {"prompt": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/api/chat": {"messages": [{"role": "user", "content": "hello"}]},
    "/api/generate": {"prompt": "hello"},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
    "/api/show": {},
    "/v1/embeddings": {"input": "hello"},
    "/v1/rerank": {"query": "hello", "documents": ["hello"]},
    "/v1/tokenize": {"prompt": "hello"},
    "/v1/detokenize": {"tokens": [300]},
}
ROLES = {
    "POST /v1/embeddings": model_pb2.MODEL_ROLE_EMBEDDING,
    "POST /api/embed": model_pb2.MODEL_ROLE_EMBEDDING,
    "POST /api/embeddings": model_pb2.MODEL_ROLE_EMBEDDING,
    "POST /v1/rerank": model_pb2.MODEL_ROLE_RERANK,
}
NAMES = [
    f"{operation.method.upper()} {operation.path}"
    for operation in OPERATIONS
    if not operation.path.startswith("/v1/admin/")
]


@pytest.fixture(scope="module")
def described() -> Any:
    return schemathesis.openapi.from_dict(document())


Start = Callable[[model_pb2.ModelRole.ValueType], Awaitable[GatewayProcess]]


@pytest.fixture(scope="module")
async def start_for(
    tmp_path_factory: pytest.TempPathFactory, policy: PolicyProcess, demo_tokenizer: bytes, key: str
) -> AsyncIterator[Start]:
    """Starts a gateway whose only model has a role, once for each."""
    started: dict[model_pb2.ModelRole.ValueType, GatewayProcess] = {}
    async with AsyncExitStack() as stack:

        async def start(role: model_pb2.ModelRole.ValueType) -> GatewayProcess:
            if role not in started:
                folder = tmp_path_factory.mktemp("described")
                nats = ServerProcess.nats(folder / "nats")
                stack.callback(nats.kill)
                nats.start()
                nats.wait_ready()
                bus = await Bus.connect(nats.url, name="backend")
                stack.push_async_callback(bus.close)
                backend = Backend(bus, demo_tokenizer)
                backend.card.role = role
                stack.push_async_callback(backend.close)
                await backend.start()
                gateway = GatewayProcess(folder, nats.url, f"127.0.0.1:{policy.port}")
                stack.push_async_callback(gateway.close)
                gateway.start()
                await gateway.wait_ready()
                await Client(gateway, key).sees(backend.card.name)
                answering = asyncio.create_task(_answer_all(backend))
                stack.push_async_callback(cancel_all, [answering])
                started[role] = gateway
            return started[role]

        yield start


@pytest.fixture
async def answering(start_for: Start, name: str) -> GatewayProcess:
    """A gateway of which every request is answered with two tokens, or with vectors of two numbers."""
    return await start_for(ROLES.get(name, model_pb2.MODEL_ROLE_GENERATION))


async def _answer_all(backend: Backend) -> None:
    while True:
        while backend.jobs:
            _, job = backend.jobs.popitem()
            if job.HasField("embedding"):
                await backend.finish_texts(job)
            else:
                await backend.finish(job, n=2)
        await asyncio.sleep(0.002)


def _preparing() -> Callable[[Case[Any]], None]:
    """Have examples name the model that is there, and every second one ask for no more than an answer."""
    numbers = itertools.count()

    def prepare(case: Case[Any]) -> None:
        _name_model(case)
        if next(numbers) % 2:
            _make_plain(case)

    return prepare


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
        if not kept.get("stream"):
            kept.pop("stream_options", None)
        case.body = {"model": "demo", **kept, **needed}


@pytest.mark.parametrize("name", NAMES)
async def test_good_requests_are_answered_as_described(
    answering: GatewayProcess, described: Any, name: str, key: str
) -> None:
    mode = GenerationMode.POSITIVE
    statuses = await call_described(answering, described, name, mode, key, prepare=_preparing())
    assert 200 in statuses


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("POST")])
async def test_bad_requests_are_refused_as_described(
    answering: GatewayProcess, described: Any, name: str, key: str
) -> None:
    statuses = await call_described(answering, described, name, GenerationMode.NEGATIVE, key)
    assert 400 in statuses
