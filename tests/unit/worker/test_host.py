"""What a host says of a model before it was loaded, and keeps when one is made known again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferflux.common.errors import InferFluxError, Unavailable
from inferflux.v1 import host_pb2, model_pb2
from inferflux.worker.catalog import Catalog, Wish
from inferflux.worker.engine.kv_types import USUAL
from inferflux.worker.host import Host
from inferflux.worker.model_facts import ModelFacts
from inferflux.worker.model_file import ModelFile
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
    process = SimpleNamespace(settings=WorkerSettings(id="h", **settings), bus=offers)
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
    async def probed(_path: Path) -> ModelFile:
        return FILE

    monkeypatch.setattr("inferflux.worker.host.probe_model_file", probed)
    models = host(Offers())
    first = Wish("a", aliases=("x",), is_pinned=True, is_default=True, context_length=512)
    await models.know(first, FILE)
    again = await models.register(host_pb2.RegisterModelFile(path="/m/a.gguf", name="a"))
    assert again.wish == first
    more = await models.register(host_pb2.RegisterModelFile(path="/m/a.gguf", name="a", aliases=["y"]))
    assert more.wish == replace(first, aliases=("y",))


async def test_a_tokenizer_that_cannot_be_stored_leaves_the_others_be() -> None:
    offers = Offers()
    models = host(offers)
    for name in "abc":
        await models.know(Wish(name), replace(FILE, digest=f"of {name}"))
    offers.taken.clear()
    offers.refused.add("of b")
    await models.offer_tokenizers()
    assert offers.taken == ["of a", "of c"]


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
