"""The models that a host knows: their names, the room they take, and the worker ids they are given."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from inferflux.common.bus import Bus
from inferflux.common.contract.errors import (
    Aborted,
    AlreadyExists,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from inferflux.common.contract.messages.hosts import MAX_KNOWN, check_model, check_status
from inferflux.common.contract.terms import SeenTerms
from inferflux.v1 import model_pb2
from inferflux.worker.app import together
from inferflux.worker.files.mmproj_file import Projection
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.files.needs import Needs
from inferflux.worker.host.catalog import AdapterWish, Catalog, Known, Wish
from inferflux.worker.host.host_status import HostStatusReports
from inferflux.worker.model.worker_state import WorkerState

GIB = 1 << 30
HELD = (model_pb2.MODEL_STATE_LOADING, model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_UNLOADING)
FREE = (model_pb2.MODEL_STATE_REGISTERED, model_pb2.MODEL_STATE_FAILED)


def known(name: str, *, aliases: Sequence[str] = (), digest: str = "", needs: int = GIB) -> Known:
    file = ModelFile(Path(f"/m/{name}.gguf"), digest or name, 1, "llama", name, 128, b"")
    card = model_pb2.ModelCard(name=name)
    return Known(Wish(name, tuple(aliases)), file, Needs(needs, 256, 0, 0), card)


def catalog(*models: Known, memory: int = 3 * GIB, models_max: int = 3) -> Catalog:
    made = Catalog("h", memory, models_max)
    for model in models:
        made.add(model)
    return made


def hold(models: Catalog, name: str) -> str:
    """Take the id of a worker for a model, and have it loaded."""
    model = models.get(name)
    model.worker_id = models.take_worker_id(model)
    model.state = model_pb2.MODEL_STATE_READY
    return model.worker_id


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (known("c", aliases=["a"]), "aliases"),
        (known("c", aliases=["other-a"]), "aliases"),
        (known("c", aliases=["c"]), "aliases"),
    ],
    ids=["a model's name", "a model's alias", "its own name"],
)
def test_an_alias_stands_for_one_model(new: Known, field: str) -> None:
    models = catalog(known("a", aliases=["other-a"]), known("b"))
    with pytest.raises(InvalidArgument) as caught:
        models.add(new)
    assert caught.value.field == field
    assert {model.name for model in models} == {"a", "b"}


def seeing(name: str, digest: str) -> Known:
    made = known(name, needs=2 * GIB)
    made.wish = replace(made.wish, mmproj=Projection(Path("/m/p.gguf"), digest, GIB))
    made.card.takes_images, made.card.projector = True, digest
    return made


def test_a_projector_is_taken_over_while_the_model_is_not_loaded() -> None:
    models = catalog(known("a"))
    found = models.add(seeing("a", "of p"))
    assert (found.needs.total, found.card.takes_images, found.card.projector) == (2 * GIB, True, "of p")
    assert found.to_message().mmproj_path == "/m/p.gguf"
    hold(models, "a")
    models.add(known("a"))
    models.add(seeing("a", "of p"))
    with pytest.raises(Aborted) as caught:
        models.add(seeing("a", "of q"))
    assert caught.value.reason == "MODEL_LOADED"
    assert found.card.projector == found.wish.projector_digest == "of p"


@pytest.mark.parametrize("name", ["a", "other-a"])
def test_a_name_that_means_another_model_is_taken(name: str) -> None:
    models = catalog(known("a", aliases=["other-a"]))
    with pytest.raises(AlreadyExists) as caught:
        models.add(known(name, digest="of another file"))
    assert caught.value.reason == "MODEL_NAME_TAKEN"
    assert [model.name for model in models] == ["a"]


def test_the_same_file_again_takes_over_what_is_said_and_keeps_what_is_not() -> None:
    first = known("a", aliases=["x"])
    first.wish = replace(first.wish, is_pinned=True, is_default=True, context_length=64, slots=2)
    models = catalog(first)
    worker_id = hold(models, "a")
    moved = known("a", needs=2 * GIB)
    moved.file = replace(moved.file, path=Path("/elsewhere/a.gguf"))
    again = models.add(moved)
    assert (again.worker_id, again.state) == (worker_id, model_pb2.MODEL_STATE_READY)
    assert again.wish == Wish("a", ("x",), is_pinned=True, is_default=True, context_length=64, slots=2)
    assert again.file.path == Path("/elsewhere/a.gguf")
    assert again.needs.total == GIB
    models.add(known("a", aliases=["x", "y"]))
    assert list(again.to_message().aliases) == ["x", "y"]
    again.state = model_pb2.MODEL_STATE_REGISTERED
    larger = known("a", needs=2 * GIB)
    larger.wish = Wish("a", slots=9)
    models.add(larger)
    assert (again.wish.slots, again.wish.context_length, again.needs.total) == (9, None, 2 * GIB)
    assert again.wish.is_pinned


def test_whether_requests_are_deterministic_changes_with_the_next_load_alone() -> None:
    models = catalog(known("a"))
    hold(models, "a")
    same = known("a")
    same.wish = Wish("a", is_deterministic=True)
    with pytest.raises(Aborted, match="loaded, and not deterministic"):
        models.add(same)
    found = models.get("a")
    assert found.wish.is_deterministic is None
    found.state = model_pb2.MODEL_STATE_REGISTERED
    for sized in (same, known("a")):
        sized.wish = replace(sized.wish, slots=3)
        models.add(sized)
        assert found.wish.is_deterministic is True, "what is left out stays"


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_a_loaded_model_that_is_as_wished_already_keeps_running(is_deterministic: bool) -> None:
    models = Catalog("h", GIB, 1, is_deterministic)
    models.add(known("a"))
    hold(models, "a")
    same, other = known("a"), known("a")
    same.wish = Wish("a", is_deterministic=is_deterministic)
    other.wish = Wish("a", is_deterministic=not is_deterministic)
    assert models.add(same).wish.is_deterministic is is_deterministic
    with pytest.raises(Aborted, match="unload it first"):
        models.add(other)


def test_what_does_not_fit_is_refused_with_both_numbers_and_nothing_changes() -> None:
    models = catalog(known("a", needs=2 * GIB), known("b", needs=GIB + GIB // 2))
    hold(models, "a")
    with pytest.raises(ResourceExhausted) as caught:
        models.take_worker_id(models.get("b"))
    assert caught.value.reason == "NO_MEMORY_FOR_MODEL"
    assert "needs 1.50 GiB" in caught.value.message
    assert "1.00 GiB of 3.00 GiB are free on host h" in caught.value.message
    assert models.free_bytes == GIB
    assert models.take_worker_id(models.get("b"), must_fit=False) == "h--1"


def test_more_than_the_most_are_refused_even_where_there_is_memory() -> None:
    models = catalog(known("a"), known("b"), memory=9 * GIB, models_max=1)
    hold(models, "a")
    with pytest.raises(ResourceExhausted, match="1 models loaded, of at most 1") as caught:
        models.take_worker_id(models.get("b"))
    assert caught.value.reason == "NO_PLACE_FOR_MODEL"


@pytest.mark.parametrize("state", [*HELD, *FREE])
def test_memory_is_taken_from_loading_until_it_is_unloaded(state: model_pb2.ModelState.ValueType) -> None:
    models = catalog(known("a"))
    models.get("a").state = state
    assert models.free_bytes == (2 * GIB if state in HELD else 3 * GIB)


def test_worker_ids_are_the_hosts_own_and_are_used_again() -> None:
    models = catalog(known("a"), known("b"), known("c"))
    assert [hold(models, name) for name in "abc"] == ["h", "h--1", "h--2"]
    gone = models.get("b")
    gone.state, gone.worker_id = model_pb2.MODEL_STATE_REGISTERED, ""
    assert hold(models, "b") == "h--1"


@pytest.mark.parametrize("state", HELD)
def test_a_model_is_not_forgotten_while_it_is_loaded(state: model_pb2.ModelState.ValueType) -> None:
    models = catalog(known("a", aliases=["x"]))
    models.get("a").state = state
    with pytest.raises(Aborted, match="unload it first"):
        models.forget("a")
    models.get("a").state = model_pb2.MODEL_STATE_FAILED
    models.forget("a")
    with pytest.raises(NotFound, match="host h has no model 'a'"):
        models.get("a")
    models.add(known("x"))


def test_a_host_knows_a_number_of_models_and_no_more() -> None:
    models = catalog(*(known(str(number)) for number in range(MAX_KNOWN)))
    with pytest.raises(ResourceExhausted):
        models.add(known("one more"))
    assert models.add(known("7")).name == "7"


def test_what_a_host_says_of_a_model_is_always_what_others_take() -> None:
    model = known("a", needs=1 << 77)
    model.reason = "ä" * 3000
    model.state = model_pb2.MODEL_STATE_FAILED
    said = model.to_message()
    check_model(said)
    assert set(said.reason) == {"ä"}
    assert said.needs_bytes == 1 << 60


def test_a_hosts_status_fits_a_message_whatever_its_models_are_called() -> None:
    models = Catalog("h", 3 * GIB, 3)

    def long(n: int) -> Known:
        name = str(n).rjust(200, "x")
        return known(name, aliases=[f"{name}-{k}".rjust(250, "a") for k in range(16)])

    n = 0
    with suppress(ResourceExhausted):
        while n < MAX_KNOWN:
            models.add(long(n))
            n += 1
    assert 100 < n < MAX_KNOWN
    with pytest.raises(ResourceExhausted, match="too long"):
        models.add(long(n))
    assert len(list(models)) == n
    for model in models:
        model.state, model.reason = model_pb2.MODEL_STATE_FAILED, "r" * 5000
    state = WorkerState("h", "i")
    reports = HostStatusReports(cast("Bus", None), state, models, SeenTerms(), idle_s=0.0)
    status = reports.status()
    assert status.ByteSize() < 1 << 20
    check_status(status)
    assert all(len(model.reason) >= 256 for model in status.models)


def test_a_model_that_is_told_longer_names_than_fit_keeps_its_own() -> None:
    models = Catalog("h", 3 * GIB, 3)
    models.add(known("last"))
    with suppress(ResourceExhausted):
        for n in range(MAX_KNOWN - 1):
            models.add(known(str(n), aliases=[f"{n}-{k}".rjust(200, "a") for k in range(16)]))
    with pytest.raises(ResourceExhausted):
        models.add(known("last", aliases=[f"last-{k}".rjust(255, "a") for k in range(16)]))
    assert models.get("last").wish.aliases == ()


def test_adapters_of_an_entry_of_the_file_of_models_reach_the_model_of_the_settings() -> None:
    file = known("chat").file
    own, other = AdapterWish("formal", Path("/a/formal.gguf")), AdapterWish("terse", Path("/a/terse.gguf"))
    louder = replace(own, scale=2.0)
    entries = [Wish("chat", adapters=(own,)), Wish("chat", context_length=64, adapters=(other, louder))]
    ((_, wish),) = together(
        [(file, Wish("chat", is_own=True, is_pinned=True)), *((file, e) for e in entries)]
    )
    assert wish.adapters == (louder, other), "of one name the last"
    assert (wish.is_own, wish.is_pinned, wish.context_length) == (True, True, 64)
