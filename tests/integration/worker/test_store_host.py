"""A worker process that pulls models into its store, and knows them again when it starts anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness.gguf_files import DIM, text, tiny_model
from harness.host import HostProcess
from harness.model_server import LOOPBACK, ModelServer, Served, model_server
from harness.projectors import tiny_projector

from inferflux.common.bus import Bus
from inferflux.v1 import host_pb2, model_pb2

RUNNING, DONE, FAILED = (
    model_pb2.STORE_JOB_STATE_RUNNING,
    model_pb2.STORE_JOB_STATE_DONE,
    model_pb2.STORE_JOB_STATE_FAILED,
)
READY, REGISTERED = model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_REGISTERED
INVALID, NOT_FOUND, EXISTS, ABORTED, INTERNAL = 3, 5, 6, 10, 13
TINY = tiny_model().data()


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
async def host(
    nats_url: str, tmp_path_factory: pytest.TempPathFactory, folder: Path, server: ModelServer
) -> AsyncIterator[HostProcess]:
    """With a store. Tests leave it empty."""
    bus = await Bus.connect(nats_url, name="store-tests")
    made = HostProcess(
        tmp_path_factory.mktemp("host"),
        nats_url,
        bus,
        "storing",
        INFERFLUX_WORKER_THREADS="1",
        INFERFLUX_MODELS_STORE=str(folder),
        INFERFLUX_HTTP_ALLOWED_NETWORKS=LOOPBACK,
        INFERFLUX_HF_ENDPOINT=server.url,
        INFERFLUX_OLLAMA_ENDPOINT=server.url,
    )
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()
        await bus.close()


@pytest.fixture
async def url(server: ModelServer) -> str:
    server.files["/tiny.gguf"] = Served(TINY)
    return f"{server.url}/tiny.gguf"


async def until_ended(host: HostProcess, reply: host_pb2.HostReply) -> model_pb2.StoreJob:
    """A job when it has ended."""
    assert not reply.code, reply

    def found() -> model_pb2.StoreJob:
        assert host.host is not None
        jobs = [job for job in host.host.store_jobs if job.job_id == reply.job.job_id]
        return jobs[0] if jobs else reply.job

    await host.until(lambda: found().state != RUNNING)
    return found()


async def pull(host: HostProcess, source: str, name: str = "", mmproj: str = "") -> host_pb2.HostReply:
    return await host.tell(pull=model_pb2.PullRequest(source=source, name=name, mmproj=mmproj))


async def remove(host: HostProcess, name: str) -> host_pb2.HostReply:
    return await host.tell(remove=model_pb2.RemoveModelRequest(name=name))


async def verify(host: HostProcess, name: str = "") -> model_pb2.StoreJob:
    return await until_ended(host, await host.tell(verify=model_pb2.VerifyModelRequest(name=name)))


async def test_a_model_is_pulled_loaded_known_again_and_removed(
    host: HostProcess, folder: Path, url: str
) -> None:
    job = await until_ended(host, await pull(host, url))
    assert (job.state, job.name, job.done_bytes, job.total_bytes) == (DONE, "tiny", len(TINY), len(TINY))
    await host.until_state("tiny", REGISTERED)
    await host.load("tiny")
    await host.until_ready("tiny")
    refused = await remove(host, "tiny")
    assert (refused.code, refused.reason) == (ABORTED, "MODEL_LOADED")
    again = await until_ended(host, await pull(host, url))
    assert (again.state, again.digest) == (DONE, job.digest)
    host.kill()
    host.host = None
    await host.start_ready()
    await host.until_state("tiny", REGISTERED)
    removed = await remove(host, "tiny")
    assert removed.job.done_bytes >= len(TINY)
    await host.until(lambda: "tiny" not in host.states)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert (await remove(host, "tiny")).code == NOT_FOUND


async def test_verify_finds_the_file_that_differs(host: HostProcess, folder: Path, url: str) -> None:
    for name in ("one", "two"):
        await until_ended(host, await pull(host, url, name))
    assert list((await verify(host)).differing) == []
    file = folder / "two" / "tiny.gguf"
    file.write_bytes(TINY[:-1] + bytes([TINY[-1] ^ 1]))
    second = await verify(host)
    assert list(second.differing) == ["two"], second
    assert list((await verify(host, "one")).differing) == []
    assert (await host.tell(verify=model_pb2.VerifyModelRequest(name="three"))).code == NOT_FOUND
    for name in ("one", "two"):
        assert not (await remove(host, name)).code


async def test_two_pulls_of_a_model_are_one(host: HostProcess, server: ModelServer) -> None:
    server.files["/slow.gguf"] = Served(TINY, busy=[429], retry_after="60")
    first = await pull(host, f"{server.url}/slow.gguf")
    second = await pull(host, f"{server.url}/slow.gguf")
    assert first.job.job_id == second.job.job_id
    other = await pull(host, f"{server.url}/other.gguf", "slow")
    assert (other.code, other.reason) == (ABORTED, "PULLED_ALREADY")
    assert not (await remove(host, "slow")).code
    ended = await until_ended(host, first)
    assert (ended.state, ended.reason) == (FAILED, "STOPPED")


async def test_a_pull_that_is_followed_to_its_end_stays_one(host: HostProcess, url: str) -> None:
    first = await pull(host, url)
    reply = first
    while reply.job.state == RUNNING:
        reply = await pull(host, url)
        assert not reply.code, reply
    assert (await until_ended(host, first)).state == DONE
    assert "tiny" in host.states
    other = await pull(host, f"{url}.gguf", "tiny")
    assert (other.code, other.reason) == (EXISTS, "MODEL_NAME_TAKEN")
    assert not (await remove(host, "tiny")).code


async def test_a_refused_removal_leaves_nothing(host: HostProcess, url: str, folder: Path) -> None:
    await until_ended(host, await pull(host, url))
    await host.load("tiny")
    await host.until_ready("tiny")
    assert (await remove(host, "tiny")).reason == "MODEL_LOADED"
    assert list((folder / ".parts").iterdir()) == []
    await host.unload("tiny")
    await host.until_state("tiny", REGISTERED)
    assert not (await remove(host, "tiny")).code


async def test_what_cannot_be_served_is_not_kept(
    host: HostProcess, server: ModelServer, folder: Path
) -> None:
    model = tiny_model()
    odd = dict(model.metadata) | {"general.architecture": text("unheard-of")}
    server.files["/odd.gguf"] = Served(replace(model, metadata=odd).data())
    ended = await until_ended(host, await pull(host, f"{server.url}/odd.gguf"))
    assert (ended.state, ended.code, ended.reason) == (FAILED, INVALID, "BAD_MODEL_FILE")
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert "odd" not in host.states


async def test_a_model_is_pulled_with_its_projector_and_known_with_it_again(
    host: HostProcess, server: ModelServer, folder: Path
) -> None:
    eyes = tiny_projector(DIM).data()
    server.hugging_face("someone/x", {"x.gguf": TINY, "mmproj-x.gguf": eyes})
    job = await until_ended(host, await pull(host, "hf:someone/x", "seeing"))
    assert (job.state, job.message, job.done_bytes) == (DONE, "", len(TINY) + len(eyes))
    known = await host.until_state("seeing", REGISTERED)
    assert known.card.takes_images
    assert Path(known.mmproj_path).read_bytes() == eyes
    again = await pull(host, "hf:someone/x", "seeing", mmproj="none")
    assert (again.code, again.reason) == (EXISTS, "MODEL_NAME_TAKEN")
    host.kill()
    host.host = None
    await host.start_ready()
    assert (await host.until_state("seeing", REGISTERED)).card.projector == known.card.projector
    await host.load("seeing")
    await host.until_ready("seeing")
    await host.unload("seeing")
    await host.until_state("seeing", REGISTERED)
    assert not (await remove(host, "seeing")).code
    assert [path for path in folder.rglob("*") if path.is_file()] == []


async def test_a_projector_that_cannot_be_used_is_left_out_and_that_is_told(
    host: HostProcess, server: ModelServer, folder: Path
) -> None:
    server.hugging_face("someone/y", {"y.gguf": TINY, "mmproj-y.gguf": tiny_projector(2 * DIM).data()})
    job = await until_ended(host, await pull(host, "hf:someone/y", "blind"))
    assert (job.state, job.code) == (DONE, 0)
    assert "without its projector" in job.message
    assert f"n_embd = {2 * DIM}" in job.message
    known = await host.until_state("blind", REGISTERED)
    assert (known.card.takes_images, known.mmproj_path) == (False, "")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["manifest.json", "y.gguf"]
    assert list((await verify(host, "blind")).differing) == []
    assert not (await remove(host, "blind")).code


async def test_bad_commands_name_their_field(host: HostProcess) -> None:
    for source in ("", "model.gguf", "hf:alone", "https://x/pytorch_model.bin", "ftp://x/y.gguf"):
        refused = await pull(host, source)
        assert (refused.code, refused.field) == (INVALID, "source"), source


async def test_a_manifest_that_is_broken_leaves_the_worker_be(
    host: HostProcess, folder: Path, url: str
) -> None:
    await until_ended(host, await pull(host, url, "fine"))
    (folder / "broken").mkdir()
    (folder / "broken" / "manifest.json").write_text(json.dumps({"format": 1, "name": "../../x"}))
    host.kill()
    host.host = None
    await host.start_ready()
    await host.until_state("fine", REGISTERED)
    assert not (await remove(host, "fine")).code
    (folder / "broken" / "manifest.json").unlink()
    (folder / "broken").rmdir()


async def test_a_store_that_is_no_folder_any_more_is_told_at_once(
    host: HostProcess, folder: Path, url: str
) -> None:
    away = folder.with_name("away")
    folder.rename(away)
    folder.touch()
    try:
        refused = await pull(host, url)
    finally:
        folder.unlink()
        away.rename(folder)
    assert (refused.code, refused.reason) == (INTERNAL, "STORE_BROKEN")
    assert str(folder) in refused.message
    assert (await until_ended(host, await pull(host, url))).state == DONE
    assert not (await remove(host, "tiny")).code


async def test_a_model_whose_files_were_deleted_differs_and_can_be_removed(
    host: HostProcess, folder: Path, url: str
) -> None:
    for name in ("one", "two"):
        await until_ended(host, await pull(host, url, name))
    shutil.rmtree(folder / "two")
    for name in ("", "two"):
        assert list((await verify(host, name)).differing) == ["two"]
    for name in ("two", "one"):
        assert not (await remove(host, name)).code
    await host.until(lambda: not {"one", "two"} & set(host.states))
    assert list((await verify(host)).differing) == []
