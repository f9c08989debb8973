"""What a host says of a model before it was loaded, and keeps when one is made known again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferflux.common.contract.errors import InferFluxError, InvalidArgument, Unavailable
from inferflux.v1 import engine_pb2, host_pb2, model_pb2
from inferflux.worker.app import Worker, together
from inferflux.worker.engine.tiers.disk import MOST_WAITING_BYTES
from inferflux.worker.files.kv_types import USUAL
from inferflux.worker.files.mmproj_file import Projection
from inferflux.worker.files.model_facts import ModelFacts
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.files.needs import Needs
from inferflux.worker.host.catalog import Catalog, Known, Wish
from inferflux.worker.host.host import Host
from inferflux.worker.host.model_setup import WAITING_BYTES, engine_config
from inferflux.worker.model.host_limit import HostLimit
from inferflux.worker.model.model_options import ModelOptions
from inferflux.worker.processes.engine_host import EngineLoadError
from inferflux.worker.settings import WorkerSettings

GIB = 1 << 30
FACTS = ModelFacts(embedding=64, feed_forward=128, kv_heads=(2, 2), key_length=32, value_length=32)
FILE = ModelFile(Path("/m/a.gguf"), "of a", 1 << 20, "llama", "a", 131_072, b"t", FACTS)


class Offers:
    """Where tokenizers are put; it refuses those of some digests."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.taken: list[str] = []

    async def put_object(self, name: str, _data: bytes) -> None:
        if name in self.refused:
            raise Unavailable("full", reason="NATS_REFUSES")
        self.taken.append(name)


async def nothing() -> None:
    pass


def host(offers: Offers, memory: int = GIB, **settings: Any) -> Host:
    engines = SimpleNamespace(prepare=lambda: None, close=lambda: None)
    process = SimpleNamespace(settings=WorkerSettings(id="h", **settings), bus=offers, engines=engines)
    return Host(
        process,  # type: ignore[arg-type]
        Catalog("h", memory, 4),
        on_change=nothing,
        on_loaded=lambda _id, _incarnation: None,
        on_gone=lambda _id: None,
    )


async def told_length(wish: Wish, memory: int = GIB, **settings: Any) -> int:
    known = await host(Offers(), memory, **settings).know(wish, FILE)
    return known.to_message().card.context_length


async def test_a_model_that_was_never_loaded_promises_no_longer_context_than_it_will_have() -> None:
    assert await told_length(Wish("a")) == 131_072
    assert await told_length(Wish("a"), context_length=4096) == 4096
    assert await told_length(Wish("a", context_length=2048), context_length=4096) == 2048
    assert await told_length(Wish("a", kv_cells=1024)) == 1024
    bytes_per_token = FACTS.kv_bytes_per_token(USUAL)
    little = await told_length(Wish("a"), memory=FILE.size_bytes + 16_384 * bytes_per_token)
    assert 256 <= little <= 8192


async def test_a_model_that_is_made_known_again_stays_pinned_the_default_and_sized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def probed(_path: Path, **_options: object) -> ModelFile:
        return FILE

    monkeypatch.setattr("inferflux.worker.host.registration.probe_model_file", probed)
    models = host(Offers())
    first = Wish("a", aliases=("x",), is_pinned=True, is_default=True, context_length=512)
    await models.know(first, FILE)
    again = await models.register(host_pb2.RegisterModelFile(path="/m/a.gguf", name="a"))
    assert again.wish == first
    more = await models.register(host_pb2.RegisterModelFile(path="/m/a.gguf", name="a", aliases=["y"]))
    assert more.wish == replace(first, aliases=("y",))


async def test_a_projector_counts_and_is_in_the_card_from_the_start() -> None:
    offers = Offers()
    models = host(offers, memory=8 * GIB)
    alone = (await models.know(Wish("a", kv_cells=512), FILE)).needs.total
    eyes = Projection(Path("/m/p.gguf"), "of p", GIB, b"s", takes_images=True, takes_audio=True)
    known = await models.know(Wish("a", mmproj=eyes), FILE)
    images = engine_config(WorkerSettings(id="h"), known).image_bytes
    assert known.needs.total == alone + GIB + images, "the cache is of the size that was asked for before"
    assert (known.card.takes_images, known.card.takes_audio, known.card.projector) == (True, True, "of p")
    assert engine_config(WorkerSettings(id="h"), known).mmproj_path == "/m/p.gguf"
    assert offers.taken[-2:] == ["of a", "of p"]


async def test_a_model_that_embeds_has_no_projector() -> None:
    models = host(Offers())
    wish = Wish("a", role=model_pb2.MODEL_ROLE_EMBEDDING, mmproj=Projection(Path("/m/p.gguf"), "of p", 1))
    with pytest.raises(InvalidArgument) as caught:
        await models.know(wish, FILE)
    assert caught.value.field == "mmproj_path"
    assert not list(models.catalog)


async def test_a_tokenizer_that_cannot_be_stored_leaves_the_others_be() -> None:
    offers = Offers()
    models = host(offers)
    for name in "abc":
        await models.know(Wish(name), replace(FILE, digest=f"of {name}"))
    offers.taken.clear()
    offers.refused.add("of b")
    await models.offer_tokenizers()
    assert offers.taken == ["of a", "of c"]


async def test_a_worker_that_starts_waits_for_servers_that_elect() -> None:
    offers = Offers()
    offers.refused.add("of a")
    asyncio.get_running_loop().call_later(0.1, offers.refused.clear)
    worker: Any = SimpleNamespace(host=host(offers))
    known = await Worker._know(worker, Wish("a"), FILE)
    assert (known.name, offers.taken) == ("a", ["of a"])


async def test_a_model_whose_place_on_the_bus_is_refused_has_failed_and_says_why() -> None:
    models = host(Offers())
    known = await models.know(Wish("a"), FILE)

    async def run() -> None:
        raise failure

    failure: InferFluxError = Unavailable("NATS is away", reason="NATS_UNAVAILABLE")
    residents = SimpleNamespace(kept_chunks=lambda _now: {"subject": [b"last"]})
    worker: Any = SimpleNamespace(
        run=run, model=SimpleNamespace(residents=residents), state=SimpleNamespace(worker_id="h")
    )
    await models._serve(known, worker)
    assert (known.state, known.worker_id) == (model_pb2.MODEL_STATE_FAILED, "")
    assert "NATS is away" in known.reason
    # Its readers may still miss what it sent last.
    assert models.kept_chunks() == {"subject": [b"last"]}


class Failing:
    """A model's worker whose loads fail, as often as `failures` says."""

    failures = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state = SimpleNamespace(worker_id="h", incarnation="i")
        self.model = SimpleNamespace(
            residents=SimpleNamespace(kept_chunks=lambda _now: {}),
            why_not_ready="loading the model",
            has_host_tier=False,
            gpu_bytes=0,
        )

    async def run(self) -> None:
        if Failing.failures:
            Failing.failures -= 1
            raise EngineLoadError("cut off")
        await asyncio.Event().wait()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    monkeypatch.setattr("inferflux.worker.host.host.ModelWorker", Failing)
    return Failing


async def state_of(known: Known, state: model_pb2.ModelState.ValueType) -> None:
    async with asyncio.timeout(10):
        while known.state != state:
            await asyncio.sleep(0)


async def test_a_pinned_model_that_failed_is_tried_again_without_a_request(
    failing: type[Failing], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    def pause_s(failures: int) -> float:
        pauses.append(failures)
        return 0.0

    monkeypatch.setattr("inferflux.worker.host.host.load_retries.pause_s", pause_s)
    failing.failures = 3
    models = host(Offers())
    known = await models.know(Wish("a", is_pinned=True), FILE)
    await models.load("a")
    async with asyncio.timeout(10):
        while failing.failures or known.state != model_pb2.MODEL_STATE_LOADING:
            await asyncio.sleep(0)
    assert (pauses, known.failures) == ([1, 2, 3], 3)
    await models.close()


async def test_a_model_that_failed_says_when_it_is_tried_again_until_it_is_given_up(
    failing: type[Failing],
) -> None:
    failing.failures = 2
    models = host(Offers())
    pinned = await models.know(Wish("a", is_pinned=True), FILE)
    plain = await models.know(Wish("b"), replace(FILE, digest="of b"))
    for known in (pinned, plain):
        await models.load(known.name)
        await state_of(known, model_pb2.MODEL_STATE_FAILED)
    assert (pinned.to_message().retry_unix_ms > 0, plain.to_message().retry_unix_ms) == (True, 0)
    assert models.why_not_ready() == "cut off"
    assert models.what_failed() == "a: cut off; b: cut off"
    for known in (pinned, plain):
        await models.unload(known.name)
        assert (known.state, known.to_message().retry_unix_ms) == (model_pb2.MODEL_STATE_REGISTERED, 0)
    assert models.what_failed() == ""
    await models.close()


async def test_the_processes_own_model_that_was_ready_once_does_not_end_the_process(
    failing: type[Failing],
) -> None:
    models = host(Offers())
    known = await models.know(Wish("a", is_pinned=True, is_own=True), FILE)
    failing.failures = 1
    await models.load("a")
    assert str(await models.until_failed("a")) == "cut off"
    assert known.retry_unix_ms == 0
    known.was_ready = True
    failing.failures = 1
    await models.load("a")
    await state_of(known, model_pb2.MODEL_STATE_FAILED)
    assert known.retry_unix_ms > 0
    unusable = asyncio.create_task(models.until_failed("a"))
    await asyncio.sleep(0)
    assert not unusable.done()
    unusable.cancel()
    await models.close()


def test_an_entry_for_the_processes_own_file_and_name_says_more_of_it() -> None:
    own = FILE, Wish("a", is_pinned=True, is_own=True)
    entry = FILE, Wish("a", aliases=("x",), is_default=True, slots=3)
    other = FILE, Wish("b")
    (first, second) = together([own, entry, other])
    assert first[1] == Wish("a", ("x",), is_pinned=True, is_own=True, is_default=True, slots=3)
    assert second == other


def test_the_processes_own_model_alone_has_its_draft_model_and_disk_folder() -> None:
    settings = WorkerSettings(id="h", disk_path=Path("/kv"), kv_cells=512)
    needs = Needs(1, 1024, 0, 0)
    card = model_pb2.ModelCard(name="a")
    own, sized, other = (
        engine_config(settings, Known(wish, FILE, needs, card))
        for wish in (Wish("a", is_own=True), Wish("a", is_own=True, kv_cells=1024), Wish("b"))
    )
    assert (own.disk_path, sized.disk_path, other.disk_path) == ("/kv", "/kv", f"/kv/{FILE.digest[:16]}")
    assert (own.kv_cells, sized.kv_cells, other.kv_cells) == (512, 1024, 1024)


async def test_tokenizers_and_heartbeats_are_sent_after_a_reconnect_that_takes_no_chunks() -> None:
    done: list[str] = []

    async def refused() -> None:
        raise Unavailable("full", reason="NATS_REFUSES")

    def noting(name: str) -> Callable[[], Awaitable[None]]:
        async def note() -> None:
            done.append(name)

        return note

    worker: Any = SimpleNamespace(
        _process=SimpleNamespace(emitter=SimpleNamespace(republish=refused)),
        host=SimpleNamespace(
            workers=[SimpleNamespace(beat=noting("beat"))], offer_tokenizers=noting("tokenizers")
        ),
        _reports=SimpleNamespace(report=noting("report")),
    )
    await Worker._on_reconnect(worker)
    assert done == ["beat", "report", "tokenizers"]


async def test_what_a_model_needs_counts_its_draft_its_disk_and_that_it_is_deterministic() -> None:
    assert WAITING_BYTES == MOST_WAITING_BYTES
    plain = Wish("a", kv_cells=512)
    draft = replace(FILE, size_bytes=GIB)

    async def needs(wish: Wish, **settings: Any) -> int:
        return (await host(Offers(), memory=8 * GIB, **settings).know(wish, FILE)).needs.total

    alone = await needs(plain)
    assert await needs(replace(plain, is_own=True, draft=draft)) > alone + GIB
    assert await needs(replace(plain, draft=draft)) == alone, "only the process's own model has it"
    assert await needs(plain, disk_path=Path("/kv")) == alone + WAITING_BYTES
    assert await needs(plain, disk_path=Path("/kv"), disk_bytes=0) == alone
    assert (
        await needs(plain, deterministic=True) == await needs(replace(plain, is_deterministic=True)) > alone
    )


class Tiered:
    """A model's worker whose engine has host memory, and takes its limits when it is told."""

    def __init__(self, _process: Any, worker_id: str, _file: Any, options: ModelOptions, **_: Any) -> None:
        self.state = SimpleNamespace(worker_id=worker_id, incarnation="i")
        self.options = options
        self.model = SimpleNamespace(
            residents=SimpleNamespace(kept_chunks=lambda _now: {}),
            has_host_tier=True,
            gpu_bytes=0,
            host_limit=HostLimit(options.engine.host_bytes),
            stats=engine_pb2.StepStats(),
            limit_host=self.limit,
        )
        self.gone = asyncio.Event()

    def limit(self, n_bytes: int) -> None:
        if n_bytes != self.model.host_limit.now:
            self.model.host_limit.give(n_bytes)

    def take(self) -> None:
        self.model.host_limit.taken(self.model.host_limit.now)

    async def run(self) -> None:
        await self.gone.wait()

    def leave(self, _limit_s: float) -> None:
        self.gone.set()


async def test_models_loaded_together_share_one_budget_of_host_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferflux.worker.host.host.ModelWorker", Tiered)
    models = host(Offers(), memory=2 * GIB, host_bytes=GIB // 2)

    def tiers() -> dict[str, Any]:
        return {name: worker.model.host_limit for name, worker in models._workers.items()}

    for name in "abc":
        await models.know(Wish(name, kv_cells=512), replace(FILE, digest=f"of {name}"))
    await models.load("a")
    assert tiers()["a"].now == GIB // 2, "what the settings say, where models leave as much"
    models._workers["a"].take()  # type: ignore[attr-defined]
    for name in "bc":
        await models.load(name)
        assert sum(limit.most for limit in tiers().values()) <= GIB // 2
    assert tiers()["c"].now == 0, "no engine has given anything up yet"
    for _ in range(3):
        for worker in models._workers.values():
            worker.take()  # type: ignore[attr-defined]
        models._divide_tier()
    assert len({limit.now for limit in tiers().values()}) == 1
    models._workers["a"].model.stats.host.bytes = GIB // 8
    for _ in range(3):
        models._divide_tier()
        assert sum(limit.most for limit in tiers().values()) <= GIB // 2
        for worker in models._workers.values():
            worker.take()  # type: ignore[attr-defined]
    assert tiers()["a"].now > 2 * tiers()["b"].now
    await models.unload("a")
    async with asyncio.timeout(10):
        while "a" in models._workers:
            await asyncio.sleep(0)
    models._divide_tier()
    assert 0.9 * GIB / 2 <= sum(limit.now for limit in tiers().values()) <= GIB / 2
    await models.close()


async def test_host_memory_is_what_models_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferflux.worker.host.host.ModelWorker", Tiered)
    models = host(Offers(), memory=GIB, host_bytes=2 * GIB)
    known = await models.know(Wish("a", kv_cells=512), FILE)
    await models.load("a")
    limit = models._workers["a"].model.host_limit
    assert GIB * 0.8 < limit.now <= GIB - known.needs.total
    await models.close()
