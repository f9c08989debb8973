"""Callers whose credentials and names are made to do harm: over gRPC and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable

import grpc.aio
import pytest
from harness.gateway import Backend, GatewayProcess, until
from harness.http_client import HttpClient, chat_body
from harness.policy import refusal

from inferflux.common.contract.errors import from_rpc
from inferflux.v1 import inference_pb2, model_pb2

KEY = "ifx_" + "A" * 43
ODD = {
    "empty": "",
    "spaces": "   ",
    "short": "ifx_",
    "a long one": "ifx_" + "A" * 6000,
    "quotes": "ifx_' OR '1'='1",
    "a star": "*",
    "a path": "ifx_../../../../etc/passwd",
    "a wildcard of Redis": "ifx_" + "?" * 43,
    "a format": "ifx_%s%n{0}" + "A" * 32,
    "not ASCII": "ifx_" + "\xfc" * 43,
}
FORGED = '{"event": "forged", "level": "info"}'


def listed(gateway: GatewayProcess, metadata: tuple[tuple[str, str], ...]) -> Awaitable[object]:
    return gateway.models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, timeout=10)


@pytest.mark.parametrize("credential", ODD.values(), ids=list(ODD))
async def test_a_malformed_credential_opens_nothing_and_is_told_nowhere(
    gateway: GatewayProcess, credential: str
) -> None:
    for header in (f"authorization: Bearer {credential}", f"x-api-key: {credential}"):
        async with HttpClient(gateway.http_port, "").connection() as connection:
            head = f"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n{header}\r\n\r\n"
            await connection.send(head.encode("latin-1"))
            answer = await connection.answer()
        assert answer.status == 401
        assert not credential.strip() or credential not in answer.body.decode("latin-1")
    if credential.isascii():
        metadata = (("authorization", f"Bearer {credential}"),)
        error = await refusal(listed(gateway, metadata))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not credential.strip("ifx_* ") or credential not in gateway.log_path.read_text("latin-1")


async def test_a_credential_of_a_megabyte_is_refused_and_others_are_served(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    metadata = (("authorization", "Bearer ifx_" + "A" * 1_000_000),)
    error = await refusal(listed(gateway, metadata))
    assert error.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    async with HttpClient(gateway.http_port, "").connection() as connection:
        head = f"GET /v1/models HTTP/1.1\r\nhost: gateway\r\nx-api-key: {'A' * 1_000_000}\r\n\r\n"
        await connection.send(head.encode())
        said = await connection.closed()
    assert b" 200 " not in said[:20]
    assert (await HttpClient(gateway.http_port, key).get("/v1/models")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        "authorization: Bearer {good}\r\nauthorization: Bearer {other}",
        "authorization: Bearer {other}\r\nx-api-key: {good}",
        "x-api-key: {good}\r\nx-api-key: {other}",
    ],
)
async def test_of_several_credentials_none_counts(gateway: GatewayProcess, key: str, headers: str) -> None:
    given = headers.format(good=key, other=KEY)
    async with HttpClient(gateway.http_port, "").connection() as connection:
        await connection.send(f"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n{given}\r\n\r\n".encode())
        answer = await connection.answer()
    assert answer.status == 401
    pairs = tuple((name, value) for line in given.split("\r\n") for name, _, value in [line.partition(": ")])
    error = await refusal(listed(gateway, pairs))
    assert from_rpc(error).reason == "SEVERAL_CREDENTIALS"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", "\u2028", "\x1b[2K\r", "\x00"])
async def test_what_callers_send_makes_no_line_of_log_or_audit(
    gateway: GatewayProcess, key: str, backend: Backend, ending: str
) -> None:
    name = f"demo{ending}{FORGED}{ending}"
    http = HttpClient(gateway.http_port, key)
    before = len(gateway.audit())
    answers = [
        await http.post("/v1/chat/completions", chat_body(model=name)),
        await http.post("/v1/admin/DeleteRole", {"name": name}),
        await http.get(f"/v1/models/{'demo' if not name.isascii() else 'x'}%0a{FORGED.replace(' ', '%20')}"),
    ]
    request = inference_pb2.TokenizeRequest(model=name, text=name)
    await refusal(gateway.inference.Tokenize(request, metadata=(("x-api-key", key),), timeout=10))
    assert all(answer.status in {400, 403, 404} for answer in answers)
    await until(lambda: len(gateway.audit()) >= before + len(answers))
    assert not [line for line in gateway.audit() if line.get("event") == "forged"]
    for path in (gateway.log_path, *gateway.audit_dir.rglob("*.jsonl")):
        for line in path.read_bytes().replace(b"\r", b"\n").split(b"\n"):
            assert not line.lstrip().startswith(FORGED.encode()), path
            if line.startswith(b"{"):
                assert json.loads(line).get("event") != "forged"
