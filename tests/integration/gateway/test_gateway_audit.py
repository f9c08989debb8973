"""The audit trail of a gateway: a line for each call, and a chain that a kill leaves whole."""

from __future__ import annotations

import hashlib
import hmac
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from harness.audit import AUDIT_KEY
from harness.gateway import Backend, Client, GatewayProcess, StartGateway, until
from harness.http_client import HttpClient
from harness.inferctl import run

from inferflux.common.calls import grpc_client, grpc_metadata
from inferflux.common.calls.audit.chain import AuditKeys, read_head
from inferflux.common.calls.audit.files import HEAD_FILE, chains_of, files_of
from inferflux.common.calls.audit.verify import Verdict, verify
from inferflux.common.contract import errors
from inferflux.v1 import admin_pb2, inference_pb2, model_pb2

KEYS = AuditKeys.of(AUDIT_KEY)


def checked(root: Path) -> Verdict:
    """The one chain of a folder, checked."""
    (folder,) = chains_of(root)
    lines = [(path.name, path.read_bytes().splitlines(keepends=True)) for path in files_of(folder)]
    return verify(lines, [KEYS.chain], read_head((folder / HEAD_FILE).read_bytes(), KEYS.chain))


def hmac_of(text: str) -> str:
    return hmac.new(KEYS.texts, text.encode(), hashlib.sha256).hexdigest()


async def line_of(gateway: GatewayProcess, request_id: str) -> dict[str, Any]:
    """The only line of a request, once it is there."""
    await until(lambda: bool(gateway.audit(request_id)))
    (line,) = gateway.audit(request_id)
    return line


async def test_a_request_that_was_served_has_counts_timings_and_keyed_hashes(
    client: Client, backend: Backend, gateway: GatewayProcess
) -> None:
    stream = client.generate("audited-1", text="tell me a secret")
    await backend.finish(await backend.job("audited-1"), n=3)
    await stream.rest()
    line = await line_of(gateway, "audited-1")
    assert (line["event"], line["decision"], line["reason"], line["outcome"]) == (
        "call",
        "allowed",
        "",
        "stop",
    )
    assert (line["tenant"], line["model"], line["service"]) == ("acme", "demo", "gateway")
    assert line["key_id"].startswith("key_")
    assert line["prompt_hmac"] == hmac_of("tell me a secret")
    assert line["answer_hmac"] == hmac_of("0 1 2 ")
    assert line["time_to_first_token_ms"] <= line["duration_ms"]
    assert not {"prompt", "answer"} & line.keys()


async def test_what_a_chat_asks_is_hashed_with_all_of_its_texts(
    client: Client, backend: Backend, gateway: GatewayProcess
) -> None:
    messages = [
        inference_pb2.ChatMessage(role="system", content="be brief"),
        inference_pb2.ChatMessage(role="user", content="hello", name="ann"),
    ]
    stream = client.chat("audited-2", messages=messages)
    await backend.finish(await backend.job("audited-2"), n=1)
    await stream.rest()
    assert (await line_of(gateway, "audited-2"))["prompt_hmac"] == hmac_of("be brief\nhello\nann")


@pytest.mark.parametrize(
    ("given", "fields", "reason"),
    [
        ("", {}, "NO_CREDENTIAL"),
        ("ifx_nonsense", {}, "UNKNOWN_API_KEY"),
        ("ifx_" + "a" * 43, {}, "UNKNOWN_API_KEY"),
        (None, {"model": "unknown-model"}, "UNKNOWN_MODEL"),
        (None, {"priority": 1000}, "INVALID_ARGUMENT"),
        (None, {"token_ids": inference_pb2.TokenIds(ids=[1 << 30])}, "INVALID_ARGUMENT"),
    ],
)
async def test_a_request_that_is_refused_has_its_line(
    gateway: GatewayProcess, given: str | None, fields: dict[str, Any], reason: str, client: Client
) -> None:
    request_id = f"refused-{abs(hash((given, str(fields))))}"
    caller = client if given is None else Client(gateway, given)
    error = await caller.generate(request_id, **fields).error()
    line = await line_of(gateway, request_id)
    assert (line["decision"], line["reason"]) == ("refused", error.reason)
    assert line["reason"] == reason
    assert line["method"] == "Generate"
    assert bool(line["key_id"]) == bool(line["tenant"]) == (given is None)
    assert line["client"] == "127.0.0.1"


async def test_calls_that_generate_nothing_have_lines_too(
    client: Client, gateway: GatewayProcess, key: str
) -> None:
    metadata = grpc_client.outgoing(api_key=key, request_id="listed-1")
    await gateway.models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata)
    line = await line_of(gateway, "listed-1")
    assert (line["method"], line["decision"], line["outcome"]) == ("ListModels", "allowed", "done")
    metadata = grpc_client.outgoing(api_key=key, request_id="denied-1")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.admin.GetFairness(admin_pb2.GetFairnessRequest(), metadata=metadata)
    line = await line_of(gateway, "denied-1")
    assert (line["reason"], line["tenant"]) == ("MISSING_SCOPE", "acme")
    assert line["key_id"].startswith("key_")
    told = {name for name, _ in caught.value.trailing_metadata() or ()}
    assert not {grpc_metadata.TENANT, grpc_metadata.KEY_ID} & told


async def test_calls_over_http_have_lines_too(http: HttpClient, gateway: GatewayProcess) -> None:
    await http.get("/v1/models", **{"x-request-id": "http-listed"})
    line = await line_of(gateway, "http-listed")
    assert (line["method"], line["outcome"], line["protocol"]) == ("GET /v1/models", "done", "http")
    answer = await http.post("/v1/completions", {"model": 5}, **{"x-request-id": "http-bad"})
    assert answer.status == 400
    line = await line_of(gateway, "http-bad")
    assert (line["decision"], line["outcome"]) == ("refused", "invalid_type")
    answer = await HttpClient(gateway.http_port, "ifx_none").post(
        "/v1/completions", {"model": "demo"}, **{"x-request-id": "http-stranger"}
    )
    assert answer.status == 401
    line = await line_of(gateway, "http-stranger")
    assert (line["reason"], line["client"]) == ("UNKNOWN_API_KEY", "127.0.0.1")


async def test_the_trail_does_not_depend_on_the_level_of_the_log_and_has_raw_texts_if_that_is_set(
    start_gateway: StartGateway, backend: Backend, nats_url: str, key: str
) -> None:
    gateway = await start_gateway(
        nats_url,
        INFERFLUX_LOG_LEVEL="error",
        INFERFLUX_AUDIT_DEBUG_MODE="true",
    )
    client = Client(gateway, key)
    await client.sees("demo")
    for i in range(8):
        stream = client.generate(f"raw-{i}", text=f"prompt {i}")
        await backend.finish(await backend.job(f"raw-{i}"), n=2)
        await stream.rest()
    line = await line_of(gateway, "raw-7")
    assert (line["prompt"], line["answer"]) == ("prompt 7", "0 1 ")
    assert "audit" not in gateway.log_path.read_text()
    gateway.terminate()
    assert await gateway.ended() == 0
    found = checked(gateway.audit_dir)
    assert found.problem is None
    assert not found.is_torn


async def test_a_killed_gateway_leaves_at_most_a_torn_line_and_the_next_goes_on(
    start_gateway: StartGateway, backend: Backend, nats_url: str, key: str
) -> None:
    first = await start_gateway(nats_url)
    client = Client(first, key)
    await client.sees("demo")
    await line_of_method(first, "ListModels")
    assert first.process is not None
    for _ in range(200):
        stream = client.generate(text="x")
        stream.cancel()
    first.process.kill()
    await first.ended()
    before = checked(first.audit_dir)
    assert before.problem is None
    second = await start_gateway(nats_url)
    await Client(second, key).sees("demo")
    await until(lambda: checked(second.audit_dir).n_lines > before.n_lines)
    after = checked(second.audit_dir)
    assert after.problem is None
    assert after.first == 1
    assert after.n_torn == before.is_torn


async def line_of_method(gateway: GatewayProcess, method: str) -> None:
    await until(lambda: any(line["method"] == method for line in gateway.audit()))


async def test_calls_are_refused_while_the_disk_is_full_where_that_is_set(
    start_gateway: StartGateway, nats_url: str, key: str, backend: Backend
) -> None:
    gateway = await start_gateway(nats_url, INFERFLUX_AUDIT_ON_FAILURE="refuse")
    await Client(gateway, key).sees("demo")
    metadata = grpc_client.outgoing(api_key=key)
    unlimited = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)

    async def is_refused() -> bool:
        try:
            await gateway.models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return errors.from_rpc(error).reason == "AUDIT_UNAVAILABLE"
        return False

    async def is_served() -> bool:
        return not await is_refused()

    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
    await until(is_refused)
    await gateway.wait_ready(ready=False)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, unlimited)
    await until(is_served)
    gateway.terminate()
    assert await gateway.ended() == 0
    assert checked(gateway.audit_dir).problem is None
    (folder,) = chains_of(gateway.audit_dir)
    text = b"".join(path.read_bytes() for path in files_of(folder))
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(line["refused_calls"] for line in lines if line["event"] == "unaudited") >= 1
    assert not any(line.get("lost_lines") for line in lines)


def test_a_trail_that_cannot_be_written_stops_the_start_and_names_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {
        "INFERFLUX_AUDIT_DIR": str(tmp_path / "file" / "audit"),
        "INFERFLUX_SERVICE_KEY": "k" * 32,
        "PATH": "",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "inferflux.gateway"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "INFERFLUX_AUDIT_DIR" in ran.stderr


async def test_inferctl_names_the_first_line_that_was_changed(
    start_gateway: StartGateway, nats_url: str, key: str, backend: Backend
) -> None:
    gateway = await start_gateway(nats_url)
    await Client(gateway, key).sees("demo")
    await line_of_method(gateway, "ListModels")
    gateway.terminate()
    assert await gateway.ended() == 0
    (folder,) = chains_of(gateway.audit_dir)
    (path,) = files_of(folder)

    async def inferctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await run("admin", "audit", *arguments, env={"INFERFLUX_AUDIT_KEY": AUDIT_KEY})

    good = await inferctl("verify", str(gateway.audit_dir), "--json")
    assert good.returncode == 0, good.stderr
    (found,) = json.loads(good.stdout).values()
    assert (found["is_good"], found["is_anchored"], found["warnings"]) == (True, True, [])
    last = await inferctl("tail", str(gateway.audit_dir), "-n", "1", "--json")
    assert json.loads(last.stdout)["event"] == "closed"

    lines = path.read_bytes().splitlines(keepends=True)
    first = json.loads(lines[0])
    noted = f"{first['seq']}:{first['hash']}"
    assert (await inferctl("verify", str(gateway.audit_dir), "--head", noted)).returncode == 0
    other = await inferctl("verify", str(gateway.audit_dir), "--head", f"1:{'0' * 64}")
    assert "the anchor names another line" in other.stdout
    shutil.copytree(folder, folder.with_name("copy"))
    either = await inferctl("verify", str(gateway.audit_dir), "--head", noted)
    assert (either.returncode, either.stdout) == (1, "")
    assert "--head is of one chain, and there are 2" in either.stderr
    shutil.rmtree(folder.with_name("copy"))
    path.write_bytes(b"".join(lines[:-1]))
    assert (await inferctl("verify", str(gateway.audit_dir), "--head", noted)).returncode == 1
    assert (await inferctl("verify", str(gateway.audit_dir))).returncode == 1
    path.write_bytes(b"".join([lines[0], lines[1].replace(b"acme", b"evil"), *lines[2:]]))
    bad = await inferctl("verify", str(gateway.audit_dir))
    assert bad.returncode == 1
    assert f"FIRST BAD LINE {path}:2" in bad.stdout
