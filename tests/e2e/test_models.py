"""Several models on one worker process: loaded by hand, and by requests that wait for them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import openai
import pytest
from harness import audit
from harness.another_gateway import another_gateway
from harness.client import MODEL, Client, prompt
from harness.http_client import HttpClient, openai_client
from harness.inferctl import run
from harness.model_server import ModelServer, Served
from harness.projectors import IMAGE_TOKENS, picture, tiny_projector
from harness.worker import DEMO_MODEL

from inferflux.cli.reach import client as cli
from inferflux.cli.reach.target import Target
from inferflux.cli.stack import Stack, StackOptions
from inferflux.cli.stack.servers import free_port
from inferflux.common.contract.errors import from_rpc
from inferflux.v1 import inference_pb2, model_pb2, tokens_pb2
from tools.random_adapter import write_adapter

pytestmark = pytest.mark.e2e

DRAFT = Path(__file__).resolve().parents[2] / "models" / "inferflux-demo-draft.gguf"
NAME = "little/one"
ALIAS = "big"
WAIT_S = 30.0


@pytest.fixture(scope="module")
async def stack(demo_model: Path) -> AsyncIterator[Stack]:
    """One worker process, two schedulers. Tests leave it with both models known."""
    async with Stack(
        StackOptions(
            model=demo_model,
            schedulers=2,
            slots=4,
            threads=1,
            restarts=False,
            has_store=True,
            service_env={"worker": {"INFERFLUX_HTTP_ALLOWED_NETWORKS": "127.0.0.0/8"}},
        )
    ) as running:
        client = Client(running.endpoint, running.api_key)
        request = model_pb2.LoadModelRequest(path=str(DRAFT), name=NAME, aliases=[ALIAS])
        await client.models.LoadModel(request, metadata=client.metadata())
        await until(client, model_pb2.MODEL_STATE_READY)
        await client.close()
        yield running


@pytest.fixture
def env(stack: Stack, tmp_path: Path) -> dict[str, str]:
    return {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return HttpClient(http_port(stack), stack.api_key)


def http_port(stack: Stack) -> int:
    return int(stack.http_url.rpartition(":")[2])


async def until(client: Client, state: model_pb2.ModelState.ValueType) -> model_pb2.Model:
    """The model that is not the demo one, once its state is this."""
    async with asyncio.timeout(WAIT_S):
        while True:
            request = model_pb2.GetModelRequest(name=ALIAS)
            try:
                model = (await client.models.GetModel(request, metadata=client.metadata())).model
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
            else:
                if model.state == state and bool(model.workers) == (state == model_pb2.MODEL_STATE_READY):
                    return model
            await asyncio.sleep(0.05)


async def unloaded(client: Client) -> model_pb2.Model:
    """The model, once nothing of it is loaded."""
    request = model_pb2.UnloadModelRequest(name=ALIAS)
    await client.models.UnloadModel(request, metadata=client.metadata())
    return await until(client, model_pb2.MODEL_STATE_REGISTERED)


async def key(http: HttpClient, *scopes: str, models: tuple[str, ...] = ()) -> str:
    body = {"tenant": "models", "name": "models", "scopes": list(scopes), "models": list(models)}
    made = await http.post("/v1/admin/CreateApiKey", body)
    assert made.status == 200, made.body
    return str(made.json()["secret"])


async def test_inferctl_loads_lists_and_unloads_while_another_model_serves(
    stack: Stack, client: Client, env: dict[str, str]
) -> None:
    await unloaded(client)
    forgotten = await run("models", "unload", ALIAS, "--forget", env=env)
    assert forgotten.returncode == 0, forgotten.stderr
    assert forgotten.stdout == f"{NAME} is forgotten: no request has it loaded again\n"
    running = asyncio.create_task(client.ask(prompt(max_tokens=300)))
    loaded = await run("models", "load", str(DRAFT), "--name", NAME, "--alias", ALIAS, env=env)
    assert loaded.returncode == 0, loaded.stderr
    assert "ready" in loaded.stdout
    assert len((await running).token_ids) == 300
    listed = json.loads((await run("models", "--json", env=env)).stdout)
    assert {model["card"]["name"]: model["state"] for model in listed} == {
        MODEL: "MODEL_STATE_READY",
        NAME: "MODEL_STATE_READY",
    }
    answered = await run("complete", "-m", ALIAS, "--max-tokens", "4", "--json", "one two", env=env)
    assert json.loads(answered.stdout)["completion_tokens"] == 4, answered.stderr
    gone = await run("models", "unload", NAME, "--json", env=env)
    assert json.loads(gone.stdout)["state"] == "MODEL_STATE_REGISTERED", gone.stderr
    for arguments, said in (
        (("load", "/no/such.gguf"), "/no/such.gguf: there is no such file"),
        (("load", "unheard-of"), "unheard-of"),
        (("load", ALIAS, "--pin"), "go with a file"),
        (("load", str(DRAFT), "--name", MODEL), "another model"),
        (("unload", "unheard-of"), "unheard-of"),
        (("load", NAME, "--host", "nowhere"), "nowhere"),
    ):
        failed = await run("models", *arguments, env=env)
        assert (failed.returncode, failed.stdout) == (1, ""), arguments
        assert failed.stderr.startswith("inferctl: ")
        assert said in failed.stderr


async def test_a_model_is_loaded_with_its_projector_and_shown_with_it(
    stack: Stack, env: dict[str, str], http: HttpClient, demo_model: Path, tmp_path: Path
) -> None:
    eyes, narrow = tmp_path / "eyes.gguf", tmp_path / "narrow.gguf"
    eyes.write_bytes(tiny_projector(256).data())
    narrow.write_bytes(tiny_projector(128).data())
    load = ("models", "load", str(demo_model), "--name", "seeing")
    for arguments, said in (
        ((*load, "--mmproj", str(narrow)), "n_embd = 128"),
        (("models", "load", MODEL, "--mmproj", str(eyes)), "go with a file"),
    ):
        refused = await run(*arguments, env=env)
        assert refused.returncode == 1
        assert said in refused.stderr
    for path, mmproj in ((str(demo_model), "eyes.gguf"), ("", str(eyes))):
        answer = await http.post("/v1/admin/LoadModel", {"name": "x", "path": path, "mmproj_path": mmproj})
        assert (answer.status, answer.error["param"]) == (400, "mmproj_path")
    loaded = await run(*load, "--mmproj", str(eyes), env=env)
    assert loaded.returncode == 0, loaded.stderr
    shown = await run("models", "show", "seeing", env=env | {"COLUMNS": "300"})
    assert "images" in shown.stdout
    assert str(eyes) in shown.stdout
    url = f"data:image/png;base64,{base64.b64encode(picture(1)).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "seeing", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
    seen = await http.post("/v1/chat/completions", body)
    assert seen.status == 200, seen.body
    assert seen.json()["usage"]["prompt_tokens"] > IMAGE_TOKENS
    gone = await run("models", "unload", "seeing", "--forget", env=env)
    assert gone.returncode == 0, gone.stderr


async def test_a_request_has_its_model_loaded_and_is_told_the_wait(client: Client) -> None:
    expected = await client.ask(prompt(model=NAME, max_tokens=12))
    known = await unloaded(client)
    assert (known.card.name, list(known.aliases)) == (NAME, [ALIAS])
    waits: list[tokens_pb2.TokenChunk] = []
    got: list[int] = []
    request = prompt(model=ALIAS, max_tokens=12)
    async for response in client.inference.Generate(request, metadata=client.metadata()):
        got.extend(response.chunk.token_ids)
        if response.chunk.HasField("queued"):
            waits.append(response.chunk)
    assert got == expected.token_ids
    assert waits, "it waited, and was not told so"
    assert all(chunk.queued.expected_wait_ms > 0 for chunk in waits[:1])
    assert (await until(client, model_pb2.MODEL_STATE_READY)).places[0].needs_bytes > 0


async def test_openai_clients_see_models_that_a_request_has_loaded(
    stack: Stack, client: Client, http: HttpClient
) -> None:
    await unloaded(client)
    async with openai_client(http_port(stack), stack.api_key) as sdk:
        assert {model.id async for model in await sdk.models.list()} == {MODEL, NAME}
        listed = {model["id"]: model for model in (await http.get("/v1/models")).json()["data"]}
        assert {name: (m["state"], m["aliases"], m["workers"]) for name, m in listed.items()} == {
            MODEL: ("ready", [], 1),
            NAME: ("registered", [ALIAS], 0),
        }
        described = await sdk.models.retrieve(ALIAS)
        assert described.id == NAME
        answer = await sdk.completions.create(model=ALIAS, prompt="one two", max_tokens=3, temperature=0)
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 3
        with pytest.raises(openai.NotFoundError):
            await sdk.completions.create(model="unheard-of", prompt="x", max_tokens=1)


async def test_administrators_load_and_unload_over_http_and_that_is_audited(
    stack: Stack, client: Client, http: HttpClient
) -> None:
    await unloaded(client)
    loaded = await http.post("/v1/admin/LoadModel", {"name": ALIAS}, **{"x-request-id": "http-load"})
    assert loaded.status == 200, loaded.body
    assert loaded.json()["model"]["card"]["name"] == NAME
    await until(client, model_pb2.MODEL_STATE_READY)
    line = await audit.line_of(stack, "http-load")
    assert line["outcome"] == "done"
    assert NAME in json.dumps(line)
    missing = await http.post("/v1/admin/LoadModel", {"path": "/no/such.gguf"})
    assert missing.status == 400
    assert (missing.error["param"], "no such file" in missing.error["message"]) == ("path", True)
    relative = await http.post("/v1/admin/LoadModel", {"path": "such.gguf"})
    assert (relative.status, relative.error["param"]) == (400, "path")


async def test_a_key_loads_only_what_it_may_use(stack: Stack, client: Client, http: HttpClient) -> None:
    await until(client, model_pb2.MODEL_STATE_READY)
    bound = Client(stack.endpoint, await key(http, "models:load", "models", models=("mine*", NAME)))
    unscoped = Client(stack.endpoint, await key(http, "inference", "models"))
    path = str(DRAFT)
    refused = [
        (unscoped, model_pb2.LoadModelRequest(name=NAME), "MISSING_SCOPE"),
        (bound, model_pb2.LoadModelRequest(name=MODEL), "MODEL_NOT_ALLOWED"),
        (bound, model_pb2.LoadModelRequest(path=path), "MODEL_NOT_ALLOWED"),
        (bound, model_pb2.LoadModelRequest(path=path, name="other"), "MODEL_NOT_ALLOWED"),
        (bound, model_pb2.LoadModelRequest(path=path, name="mine-1", aliases=["gpt"]), "MODEL_NOT_ALLOWED"),
    ]
    try:
        for caller, request, reason in refused:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await caller.models.LoadModel(request, metadata=caller.metadata())
            assert (from_rpc(caught.value).reason, request) == (reason, request)
        allowed = model_pb2.LoadModelRequest(name=ALIAS)
        model = (await bound.models.LoadModel(allowed, metadata=bound.metadata())).model
        assert model.card.name == NAME
        unload = model_pb2.UnloadModelRequest(name=MODEL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bound.models.UnloadModel(unload, metadata=bound.metadata())
        assert from_rpc(caught.value).reason == "MODEL_NOT_ALLOWED"
        seen = await HttpClient(http_port(stack), bound.api_key).get(f"/v1/models/{ALIAS}")
        assert seen.json()["id"] == NAME, "an alias is as allowed as its model"
    finally:
        await bound.close()
        await unscoped.close()


async def test_a_standby_goes_on_where_a_model_is_being_loaded(stack: Stack, client: Client) -> None:
    expected = await client.ask(prompt(model=NAME, max_tokens=12))
    await unloaded(client)
    request: inference_pb2.GenerateRequest = prompt(model=ALIAS, max_tokens=12)
    waiting = asyncio.create_task(client.ask(request))
    await client.until_status(lambda status: status.scheduler.queued > 0 or waiting.done())
    leader = (await client.status()).scheduler.leader
    await stack.kill(leader)
    try:
        assert (await waiting).token_ids == expected.token_ids
        assert (await until(client, model_pb2.MODEL_STATE_READY)).workers == 1
    finally:
        await stack.restart(leader)


async def test_an_adapter_is_added_chosen_listed_and_removed_while_its_model_serves(
    stack: Stack, client: Client, env: dict[str, str], http: HttpClient, tmp_path: Path
) -> None:
    path = write_adapter(tmp_path / "odd.gguf", DEMO_MODEL, seed=1)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(path.read_bytes()[:-64])
    running = asyncio.create_task(client.ask(prompt(max_tokens=300)))
    refused = await run("models", "adapter", "add", MODEL, "bad", str(bad), env=env)
    assert refused.returncode != 0
    assert "cut off" in refused.stderr
    added = await run("models", "adapter", "add", MODEL, "odd", str(path), env=env)
    assert added.returncode == 0, added.stderr
    assert ":odd" in added.stdout
    assert len((await running).token_ids) == 300

    async def said(model: str, adapter: str = "") -> list[int]:
        asked = prompt(max_tokens=12)
        asked.model, asked.adapter = model, adapter
        return list((await client.ask(asked)).token_ids)

    plain, adapted = await said(MODEL), await said(f"{MODEL}:odd")
    assert plain != adapted
    assert await said(MODEL, adapter="odd") == adapted
    both = await asyncio.gather(said(MODEL), said(f"{MODEL}:odd"))
    assert list(both) == [plain, adapted]
    ids = [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
    assert f"{MODEL}:odd" in ids
    body = {"model": f"{MODEL}:odd", "prompt": "Once", "max_tokens": 2}
    answered = await http.post("/v1/completions", body)
    assert answered.status == 200, answered.body
    assert answered.headers["x-inferflux-model"] == f"{MODEL}:odd"
    assert (await http.post("/v1/completions", body | {"model": f"{MODEL}:none"})).status == 404
    narrow = HttpClient(http_port(stack), await key(http, "inference", models=(f"{MODEL}:odd",)))
    assert (await narrow.post("/v1/completions", body)).status == 200
    assert (await narrow.post("/v1/completions", body | {"model": MODEL})).status == 403
    for adapter, is_there in (("odd", True), ("none", False)):
        shown = await run("models", "show", f"{MODEL}:{adapter}", env=env)
        assert (shown.returncode == 0) == is_there, shown.stderr
    removed = await http.post("/v1/admin/RemoveAdapter", {"model": MODEL, "adapter": "odd"})
    assert removed.status == 200, removed.body
    assert (await http.post("/v1/completions", body)).status == 404
    assert await said(MODEL) == plain


async def test_a_model_is_pulled_verified_and_removed(env: dict[str, str], http: HttpClient) -> None:
    pulled = await run("pull", str(DRAFT), "--name", "pulled", "--json", env=env)
    assert pulled.returncode == 0, pulled.stderr
    job = json.loads(pulled.stdout)
    assert (job["name"], job["total_bytes"]) == ("pulled", str(DRAFT.stat().st_size))
    assert job["digest"] == hashlib.sha256(DRAFT.read_bytes()).hexdigest()
    listed = json.loads((await run("models", "--json", env=env)).stdout)
    assert "pulled" in {model["card"]["name"] for model in listed}
    verified = await run("models", "verify", "pulled", env=env)
    assert verified.returncode == 0, verified.stderr
    for source, said in (
        ("hf:nothing", "no repository"),
        ("https://x.example/m.bin", "pickle"),
        ("missing.gguf", "no file missing.gguf"),
        ("what:ever", "no source"),
    ):
        refused = await run("pull", source, env=env)
        assert refused.returncode == 1
        assert said in refused.stderr
    assert (await http.post("/v1/admin/RemoveModel", {"name": "pulled"})).status == 200
    again = await run("models", "rm", "pulled", env=env)
    assert again.returncode == 1
    assert "no model" in again.stderr


async def test_a_pull_is_followed_at_another_gateway(stack: Stack) -> None:
    server = ModelServer(free_port())
    asked = asyncio.Barrier(2)
    served = server.files["/slow.gguf"] = Served(DRAFT.read_bytes(), together=asked)
    request = model_pb2.PullRequest(source=f"{server.url}/slow.gguf", name="slow")
    async with (
        await asyncio.start_server(server.serve, "127.0.0.1", server.port),
        another_gateway(stack) as doomed,
        cli.Client(Target(f"{doomed.endpoint},{stack.endpoint}", stack.api_key)) as client,
        asyncio.timeout(WAIT_S),
    ):
        done_bytes = 0
        async for job in client.pull(request):
            if doomed.process.poll() is None:
                doomed.kill()
                await asked.wait()
                served.together = None
            done_bytes = job.done_bytes
        assert done_bytes == DRAFT.stat().st_size
        await client.remove_model(model_pb2.RemoveModelRequest(name="slow"))
