"""A store pulls models from servers that break, lie and are slow, and keeps what is whole alone."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.commands import outcome_of
from harness.http_proxy import http_proxy
from harness.model_server import LOOPBACK, TOKEN, ModelServer, Served, model_server

from inferflux.common.contract.errors import (
    Aborted,
    InferFluxError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from inferflux.common.http.http_addresses import parse_networks
from inferflux.common.http.http_client import HttpClient
from inferflux.worker.store.__main__ import Reports, run_task
from inferflux.worker.store.folder import StoreFolder
from inferflux.worker.store.pulling import pull
from inferflux.worker.store.task import Report, Task
from inferflux.worker.store.transfer import Retries
from inferflux.worker.store.verifying import verify

DATA = b"GGUF" + random.Random(1).randbytes(100_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
SHORT_SHARDS = ("model-00001-of-00002.gguf", "model-00002-of-00002.gguf")
FAST = Retries(most=4, first_s=0.0, longest_s=0.0, idle_s=5.0)


class World:
    """A store and a server."""

    def __init__(self, path: Path, server: ModelServer) -> None:
        self.server = server
        self.store = StoreFolder(path)
        path.mkdir()
        self.reports: list[Report] = []

    async def pull(self, source: str = "", name: str = "m", **fields: Any) -> Report:
        """Pull a model and make it one of the store."""
        task = Task(
            "pull",
            str(self.store.path),
            name,
            source=source or f"{self.server.url}/m.gguf",
            hugging_face=self.server.url,
            ollama=self.server.url,
            **({"retries": FAST} | fields),
        )
        client = HttpClient(allowed_networks=parse_networks([LOOPBACK]))
        try:
            report = await pull(task, self.store, client, self.reports.append)
        finally:
            await client.aclose()
        self.store.commit(name)
        return report

    def data(self, name: str = "m", file: str = "m.gguf") -> bytes:
        return (self.store.model(name) / file).read_bytes()

    def files(self) -> list[str]:
        """Every file of the store."""
        return sorted(str(p.relative_to(self.store.path)) for p in self.store.path.rglob("*") if p.is_file())

    async def refused(self, kind: type[InferFluxError], *said: str, **fields: Any) -> InferFluxError:
        """Why a pull is refused. No model is there then."""
        with pytest.raises(kind) as caught:
            await self.pull(**fields)
        for words in said:
            assert words in caught.value.message
        assert list(self.store.manifests()) == []
        return caught.value


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with model_server() as server:
        server.files["/m.gguf"] = Served(DATA)
        yield World(tmp_path / "store", server)


async def test_a_model_is_pulled_with_its_manifest(world: World) -> None:
    report = await world.pull()
    assert (report.digest, report.done, report.total) == (DIGEST, len(DATA), len(DATA))
    assert world.data() == DATA
    assert world.files() == ["m/m.gguf", "m/manifest.json"]
    (manifest,) = world.store.manifests()
    assert (manifest.name, manifest.source) == ("m", f"{world.server.url}/m.gguf")
    assert (manifest.digest, manifest.size) == (DIGEST, len(DATA))


async def test_a_pull_goes_through_the_proxy_of_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task("pull", str(world.store.path), "m", source=f"{world.server.url}/m.gguf", networks=LOOPBACK)
    async with http_proxy() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        report = await run_task(task, Reports())
        assert report.digest == DIGEST
        assert proxy.asked
        assert all(f" {world.server.url}/m.gguf " in asked for asked in proxy.asked)
        monkeypatch.setenv("no_proxy", LOOPBACK.partition("/")[0])
        proxy.asked.clear()
        assert (await run_task(replace(task, name="other"), Reports())).digest == DIGEST
        assert not proxy.asked


async def test_a_transfer_that_breaks_at_every_tenth_is_resumed_and_the_file_is_the_same(
    world: World,
) -> None:
    breaks = [len(DATA) * tenth // 10 for tenth in range(1, 10)]
    world.server.files["/m.gguf"].breaks_at = list(breaks)
    await world.pull()
    assert world.data() == DATA
    assert world.files() == ["m/m.gguf", "m/manifest.json"]
    assert world.server.ranges("/m.gguf") == ["", *(f"bytes={at}-" for at in breaks)]


@pytest.mark.parametrize("tenth", range(1, 10))
async def test_a_pull_that_was_given_up_is_resumed_by_the_next(world: World, tenth: int) -> None:
    at = len(DATA) * tenth // 10
    world.server.files["/m.gguf"].breaks_at = [at]
    await world.refused(Unavailable, "given up", retries=Retries(most=1, first_s=0.0))
    assert world.files() == [".parts/m/m.gguf.part", ".parts/m/m.gguf.part.state"]
    await world.pull()
    assert world.data() == DATA
    assert world.files() == ["m/m.gguf", "m/manifest.json"]
    assert world.server.ranges("/m.gguf")[-1] == f"bytes={at}-"


async def test_a_server_without_ranges_sends_all_of_it_again(world: World) -> None:
    world.server.files["/m.gguf"] = Served(DATA, breaks_at=[60_000], has_ranges=False)
    await world.pull()
    assert world.data() == DATA


async def test_a_file_without_a_validator_is_sent_again(world: World) -> None:
    world.server.files["/m.gguf"] = Served(DATA, breaks_at=[60_000], etag="")
    await world.refused(Unavailable, retries=Retries(most=1, first_s=0.0))
    assert world.files() == []
    await world.pull()
    assert world.data() == DATA
    assert world.server.ranges("/m.gguf") == ["", ""]


async def test_a_file_that_changed_midway_comes_whole_from_the_new_one(world: World) -> None:
    other = b"GGUF" + bytes(len(DATA) - 4)
    world.server.files["/m.gguf"] = Served(DATA, breaks_at=[50_000])
    await world.refused(Unavailable, retries=Retries(most=1, first_s=0.0))
    world.server.files["/m.gguf"] = Served(other, etag='"two"')
    await world.pull()
    assert world.data() == other


async def test_a_server_that_ignores_if_range_is_found_out_by_its_tag(world: World) -> None:
    other = b"GGUF" + bytes(len(DATA) - 4)
    world.server.files["/m.gguf"] = Served(DATA, breaks_at=[50_000])
    await world.refused(Unavailable, retries=Retries(most=1, first_s=0.0))

    world.server.files["/m.gguf"] = Served(other, etag='"two"', ignores_if_range=True)
    await world.pull()
    assert world.data() == other


async def test_a_slow_and_chunked_transfer_without_a_length_comes_whole(world: World) -> None:
    world.server.files["/m.gguf"] = Served(DATA, drip=1000, is_chunked=True)
    await world.pull(sha256=DIGEST)
    assert world.data() == DATA


async def test_a_wrong_checksum_leaves_nothing(world: World) -> None:
    error = await world.refused(Aborted, "SHA-256", DIGEST, sha256="0" * 64)
    assert error.reason == "WRONG_CHECKSUM"
    assert not any(name.endswith(".part") for name in world.files())


async def test_a_length_that_is_not_kept_is_a_broken_transfer(world: World) -> None:
    world.server.files["/m.gguf"].claims = len(DATA) + 5
    await world.refused(Unavailable, "given up")


async def test_a_model_beyond_the_quota_is_refused_before_a_byte_with_both_numbers(world: World) -> None:
    error = await world.refused(ResourceExhausted, f"{len(DATA):,}", "50,000", quota=50_000)
    assert error.reason == "STORE_QUOTA"
    assert not any(name.endswith(".part") for name in world.files())


async def test_a_model_of_unknown_length_stops_at_the_quota(world: World) -> None:
    world.server.files["/m.gguf"] = Served(DATA, drip=1000, is_chunked=True)
    error = await world.refused(ResourceExhausted, "50,000", quota=50_000)
    assert error.reason == "STORE_QUOTA"


async def test_what_is_in_the_store_counts_for_the_quota(world: World) -> None:
    await world.pull()
    world.server.files["/n.gguf"] = Served(DATA)
    with pytest.raises(ResourceExhausted):
        await world.pull(f"{world.server.url}/n.gguf", "n", quota=150_000)
    await world.pull(f"{world.server.url}/n.gguf", "n", quota=300_000)


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (401, Aborted, "SOURCE_DENIED"),
        (403, Aborted, "SOURCE_DENIED"),
        (404, NotFound, "SOURCE_MISSING"),
        (418, Unavailable, "SOURCE_REFUSED"),
    ],
)
async def test_a_refusal_is_told_and_not_tried_again(
    world: World, status: int, kind: type[InferFluxError], reason: str
) -> None:
    world.server.files["/m.gguf"].busy = [status]
    error = await world.refused(kind, str(status))
    assert error.reason == reason
    assert len(world.server.asked) == 1


async def test_a_busy_server_is_asked_again_when_it_says(world: World) -> None:
    world.server.files["/m.gguf"].busy = [429, 503]
    await world.pull()
    assert world.data() == DATA
    assert any("429" in report.doing for report in world.reports)


async def test_a_server_that_wants_a_long_wait_ends_the_pull(world: World) -> None:
    world.server.files["/m.gguf"] = Served(DATA, busy=[429], retry_after="9999")
    error = await world.refused(Unavailable, "429")
    assert error.retry_delay_s == 9999


async def test_redirects_are_followed_and_credentials_stay(world: World) -> None:
    world.server.files["/go"] = Served(location="/m.gguf")
    await world.pull(f"{world.server.url}/go")
    assert world.data(file="model.gguf") == DATA


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.2", "169.254.169.254", "[::1]"])
async def test_a_redirect_to_a_private_address_is_refused(world: World, host: str) -> None:
    world.server.files["/m.gguf"] = Served(location=f"http://{host}/secret.gguf")
    error = await world.refused(Unavailable)
    assert error.reason == "HTTP_ADDRESS_REFUSED"


async def test_redirects_end(world: World) -> None:
    world.server.files["/m.gguf"] = Served(location="/m.gguf")
    error = await world.refused(Unavailable)
    assert error.reason == "HTTP_REDIRECT_REFUSED"


@pytest.mark.parametrize("head", [b"\x80\x02ct", b"PK\x03\x04", b"<html>"])
async def test_what_is_no_gguf_is_refused_at_its_first_bytes(world: World, head: bytes) -> None:
    world.server.files["/m.gguf"] = Served(head + bytes(1000), drip=3)
    error = await world.refused(InvalidArgument, "no GGUF")
    assert error.reason == "BAD_MODEL_FILE"


# Hugging Face


async def test_a_repository_gives_the_file_of_a_quantization(world: World) -> None:
    files = {"README.md": b"", "x-Q4_K_M.gguf": DATA, "x-Q8_0.gguf": b"GGUFother", "mmproj-x.gguf": b"GGUF"}
    world.server.hugging_face("someone/x-GGUF", files)
    report = await world.pull("hf:someone/x-GGUF:q8_0", "eight")
    assert world.data("eight", "x-Q8_0.gguf") == b"GGUFother"
    assert report.digest == hashlib.sha256(b"GGUFother").hexdigest()
    await world.pull("hf:someone/x-GGUF", "usual")
    assert world.data("usual", "x-Q4_K_M.gguf") == DATA
    with pytest.raises(InvalidArgument, match=r"x-Q4_K_M\.gguf, x-Q8_0\.gguf"):
        await world.pull("hf:someone/x-GGUF:Q2_K", "none")


EYES = b"GGUF eyes"


def projector_of(world: World, name: str) -> str:
    """The file of a model's projector, whose bytes are `EYES`; empty if it has none."""
    manifest = world.store.get(name)
    assert manifest is not None
    assert manifest.digest == DIGEST, "that of the model alone"
    if manifest.projector is None:
        assert manifest.size == len(DATA)
        return ""
    assert world.data(name, manifest.projector.name) == EYES
    assert manifest.projector.sha256 == hashlib.sha256(EYES).hexdigest()
    assert manifest.size == len(DATA) + len(EYES)
    return manifest.projector.name


async def test_a_repository_gives_the_projector_beside_the_model(world: World) -> None:
    files = {"x-Q4_K_M.gguf": DATA, "mmproj-x-f16.gguf": EYES, "mmproj-x-f32.gguf": b"GGUF more"}
    world.server.hugging_face("someone/x-GGUF", files)
    report = await world.pull("hf:someone/x-GGUF", "seeing", sha256=DIGEST)
    assert (report.digest, report.done) == (DIGEST, len(DATA) + len(EYES))
    assert projector_of(world, "seeing") == "mmproj-x-f16.gguf"
    await world.pull("hf:someone/x-GGUF", "blind", mmproj="none")
    assert projector_of(world, "blind") == ""
    await world.pull("hf:someone/x-GGUF:x-Q4_K_M.gguf", "chosen", mmproj="mmproj-x-f16.gguf")
    assert projector_of(world, "chosen") == "mmproj-x-f16.gguf"
    world.store.model("seeing").joinpath("mmproj-x-f16.gguf").write_bytes(b"GGUF eyeS")
    assert verify(world.store, "", world.reports.append).differing == ("seeing",)


async def test_a_transfer_of_a_projector_that_breaks_is_resumed(world: World) -> None:
    world.server.hugging_face("someone/x", {"x.gguf": DATA, "mmproj.gguf": EYES})
    path = f"/lfs/{hashlib.sha256(EYES).hexdigest()}?signature=secret"
    world.server.files[path].breaks_at = [6]
    await world.pull("hf:someone/x")
    assert projector_of(world, "m") == "mmproj.gguf"
    assert world.server.ranges(path) == ["", "bytes=6-"]


async def test_a_projector_that_is_not_there_or_not_clear_is_refused(world: World) -> None:
    names = ("x.gguf", "mmproj-a.gguf", "mmproj-b.gguf")
    world.server.hugging_face("someone/x", dict.fromkeys(names, DATA))
    for said, mmproj in (("mmproj-a.gguf, mmproj-b.gguf", ""), ("no GGUF file 'mmproj-c", "mmproj-c.gguf")):
        error = await world.refused(InvalidArgument, said, source="hf:someone/x", mmproj=mmproj)
        assert isinstance(error, InvalidArgument)
        assert error.field == "mmproj"
    await world.refused(InvalidArgument, "name a repository", mmproj="mmproj-a.gguf")


async def test_the_digest_that_hugging_face_tells_must_hold(world: World) -> None:
    world.server.hugging_face("someone/x", {"x.gguf": DATA})
    digest = f"/lfs/{DIGEST}?signature=secret"
    world.server.files[digest] = Served(DATA[:-1] + b"?")
    error = await world.refused(Aborted, DIGEST, source="hf:someone/x")
    assert error.reason == "WRONG_CHECKSUM"


async def test_a_repository_with_shards_gives_all_of_them(world: World) -> None:
    names = [f"q4/x-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    world.server.hugging_face("someone/x", {name: DATA + bytes([i]) for i, name in enumerate(names)})
    await world.pull("hf:someone/x:q4", "sharded")
    for i, name in enumerate(names):
        assert world.data("sharded", name.removeprefix("q4/")) == DATA + bytes([i])


async def test_a_token_goes_to_hugging_face_alone_and_is_shown_nowhere(world: World) -> None:
    world.server.hugging_face("someone/x", {"x.gguf": DATA}, token=TOKEN)
    await world.refused(Aborted, "401", source="hf:someone/x")
    async with model_server() as store:
        path = f"/lfs/{DIGEST}?signature=secret"
        store.files[path] = Served(DATA)
        for served in world.server.files.values():
            served.location = served.location and store.url + path
        await world.pull("hf:someone/x", hf_token=TOKEN)
        assert [asked.headers.get("authorization") for asked in store.asked] == [None]
    assert TOKEN not in repr(Task("pull", "", "", hf_token=TOKEN))
    kept = b"".join(p.read_bytes() for p in world.store.path.rglob("*.json"))
    assert TOKEN.encode() not in kept
    assert b"signature" not in kept


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.safetensors"])
async def test_a_repository_without_a_gguf_is_refused_by_name(world: World, file: str) -> None:
    world.server.hugging_face("someone/x", {"README.md": b"", file: b"GGUF"})
    await world.refused(InvalidArgument, file, source="hf:someone/x")


# OCI


async def test_a_model_of_a_registry_is_its_model_layer(world: World) -> None:
    path = world.server.registry("library/tiny", "latest", DATA)
    world.server.files[path].breaks_at = [30_000]
    report = await world.pull("ollama:tiny", "tiny")
    assert report.digest == DIGEST
    assert world.data("tiny", "model.gguf") == DATA


async def test_a_blob_that_is_not_its_digest_is_refused(world: World) -> None:
    path = world.server.registry("some/tiny", "1b", DATA)
    world.server.files[path] = Served(DATA[:-1] + b"?")
    error = await world.refused(Aborted, DIGEST, source="ollama:some/tiny:1b")
    assert error.reason == "WRONG_CHECKSUM"
    world.server.files[path] = Served(DATA + b"?")
    error = await world.refused(Aborted, source="ollama:some/tiny:1b")
    assert error.reason == "WRONG_LENGTH"


async def test_a_registry_gives_the_projector_layer(world: World) -> None:
    world.server.registry("library/seeing", "latest", DATA, EYES)
    await world.pull("ollama:seeing", "seeing")
    assert projector_of(world, "seeing") == "mmproj.gguf"
    await world.pull("ollama:seeing", "blind", mmproj="none")
    assert projector_of(world, "blind") == ""
    world.server.registry("library/three", "latest", DATA, EYES, b"GGUF other")
    with pytest.raises(InvalidArgument, match="2 projectors") as caught:
        await world.pull("ollama:three", "three")
    assert caught.value.field == "mmproj"


# Disks


async def test_a_folder_gives_the_projector_beside_the_model(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(DATA)
    (folder / "mmproj-x.gguf").write_bytes(EYES)
    await world.pull(str(folder), "folder")
    assert projector_of(world, "folder") == "mmproj-x.gguf"
    await world.pull(str(folder / "x.gguf"), "file")
    assert projector_of(world, "file") == ""


async def test_a_folder_of_shards_is_copied(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    for i in (1, 2):
        (folder / f"x-{i:05d}-of-00002.gguf").write_bytes(DATA + bytes([i]))
    await world.pull(str(folder))
    assert world.data(file="x-00002-of-00002.gguf") == DATA + b"\2"
    (folder / "x-00002-of-00002.gguf").unlink()
    with pytest.raises(InvalidArgument, match="x-00002-of-00002"):
        await world.pull(f"file:{folder}", "other")
    with pytest.raises(InvalidArgument, match="no such file"):
        await world.pull("file:/no/such.gguf", "other")


# Runs a command that can make no file longer than that.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


async def in_a_process(task: Task, *within: str) -> Report:
    """How a pull in a process of its own ends, as workers begin them; begun by another command, if any."""
    command = [*within, sys.executable, "-m", "inferflux.worker.store"]
    _, out, err = await outcome_of(command, said=task.to_json().encode())
    assert out, err
    return Report.from_json(out.splitlines()[-1].encode())


async def test_a_path_that_cannot_be_looked_at_is_the_sources_fault(world: World, tmp_path: Path) -> None:
    error = await world.refused(InvalidArgument, "too long", source=f"/{'x' * 300}.gguf")
    assert isinstance(error, InvalidArgument)
    assert error.field == "source"
    longest = tmp_path / f"{'x' * 245}.gguf"
    longest.write_bytes(DATA)
    await world.pull(str(longest))
    assert world.data(file="model.gguf") == DATA


async def test_a_disk_that_takes_no_more_is_not_the_sources_fault(world: World, tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(DATA)
    task = Task("pull", str(world.store.path), "m", source=str(source))
    ended = await in_a_process(task, sys.executable, "-c", LIMITED, str(len(DATA) // 2))
    assert (ended.reason, ended.field) == ("STORE_BROKEN", "")
    assert "too large" in ended.message
    assert world.files() == []


async def test_pulls_that_begin_at_once_share_the_quota(world: World) -> None:
    world.server.files["/m.gguf"] = Served(DATA, together=asyncio.Barrier(6))
    tasks = [
        Task(
            "pull",
            str(world.store.path),
            f"m{i}",
            source=f"{world.server.url}/m.gguf",
            quota=2 * len(DATA) + 9000,
            networks=LOOPBACK,
        )
        for i in range(6)
    ]
    # What is there takes a while to be counted.
    for i in range(2000):
        (world.store.path / f"empty-{i}").touch()
    ended = await asyncio.gather(*map(in_a_process, tasks))
    assert sorted(report.reason for report in ended) == ["", "", *["STORE_QUOTA"] * 4]


# Servers that lie


@pytest.mark.parametrize("status", [206, 416])
@pytest.mark.parametrize("range_", ["bytes 0-9/" + "9" * 5000, "bytes " + "9" * 5000 + "-1/2", "bytes ٣-٣/٣"])
async def test_a_range_that_is_no_number_is_a_broken_transfer(world: World, status: int, range_: str) -> None:
    world.server.files["/m.gguf"] = Served(DATA, breaks_at=[50_000])
    await world.refused(Unavailable, retries=Retries(most=1, first_s=0.0))
    head = {"content-range": range_.encode().decode("latin-1"), "etag": '"one"'}
    world.server.files["/m.gguf"] = Served(DATA, busy=[status], headers=head)
    await world.pull()
    assert world.data() == DATA


@pytest.mark.parametrize(
    "retry_after", ["9" * 400, "9" * 5000, "Thu, 01 Jan 2026 00:00:00 -0000", "soon", "-5"]
)
async def test_a_wait_that_makes_no_sense_is_none(world: World, retry_after: str) -> None:
    head = {"date": "Thu, 01 Jan 2026 00:00:00 GMT"}
    world.server.files["/m.gguf"] = Served(DATA, busy=[503], retry_after=retry_after, headers=head)
    await world.pull()
    assert world.data() == DATA


@pytest.mark.parametrize("name", ["a\0.gguf", "a\nb.gguf", "\ud800.gguf", f"{'x' * 5000}.gguf", "", ".."])
async def test_a_repository_lists_names_that_no_file_can_have(world: World, name: str) -> None:
    world.server.hugging_face("someone/x", {"x.gguf": DATA})
    siblings = [{"rfilename": name}, {"rfilename": 5}, {"rfilename": "x.gguf"}]
    world.server.json("/api/models/someone/x?blobs=true", {"sha": "c" * 40, "siblings": siblings})
    await world.pull("hf:someone/x")
    assert world.data(file="x.gguf") == DATA


async def test_a_long_name_of_a_repository_is_shortened_in_the_store(world: World) -> None:
    names = [f"{'x' * 240}-{i:05d}-of-00002.gguf" for i in (1, 2)]
    world.server.hugging_face("someone/x", dict.fromkeys(names, DATA))
    await world.pull("hf:someone/x")
    assert world.files() == [f"m/{name}" for name in ("manifest.json", *SHORT_SHARDS)]


# What is left


async def test_a_refused_pull_leaves_no_file_and_no_folder(world: World) -> None:
    await world.refused(Aborted, sha256="0" * 64)
    world.server.files["/m.gguf"] = Served(b"<html>" * 1000)
    await world.refused(InvalidArgument)
    await world.refused(ResourceExhausted, quota=10)
    assert [path for path in world.store.path.rglob("*") if path.name != ".parts"] == []


async def test_a_part_that_another_process_deletes_at_that_moment_stops_no_cleaning(world: World) -> None:
    parts = world.store.part("x").parent
    (parts / ".removed-first").mkdir(parents=True)
    (parts / ".removed-gone").symlink_to(parts / "nowhere")  # listed, and no more there when it is opened
    (parts / ".removed-last").mkdir()
    world.store.clean(0.0)
    assert [path.name for path in parts.iterdir()] == [".removed-gone"]
