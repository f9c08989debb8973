"""A worker process with several models: what it is told, and that no model feels what becomes of another."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.gguf_files import text, tiny_model, u32
from harness.host import HostProcess
from harness.model_kinds import sliding_window_model
from harness.projectors import mixed_projector, tiny_projector
from harness.servers import ServerProcess
from harness.worker import DEMO_MODEL, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.v1 import host_pb2, model_pb2, worker_pb2

REGISTERED, READY, FAILED = (
    model_pb2.MODEL_STATE_REGISTERED,
    model_pb2.MODEL_STATE_READY,
    model_pb2.MODEL_STATE_FAILED,
)
INVALID, NOT_FOUND, EXISTS, EXHAUSTED, ABORTED = 3, 5, 6, 8, 10
DEMO = "inferflux-demo"
LONG = 400
_DEMO_WIDTH = 256


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model().write(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
async def shared(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostProcess]:
    """With the demo model ready and pinned. Tests leave it at that."""
    bus = await Bus.connect(nats_url, name="host-tests")
    made = HostProcess(
        tmp_path_factory.mktemp("host"),
        nats_url,
        bus,
        "host",
        INFERFLUX_WORKER_MODEL_PATH=str(DEMO_MODEL),
        INFERFLUX_WORKER_THREADS="1",
    )
    try:
        await made.start_ready()
        await made.until_ready(DEMO)
        yield made
    finally:
        made.kill()
        await bus.close()


@pytest.fixture
async def private_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    connection = await Bus.connect(private_nats.url, name="test")
    await connection.ensure_streams(StreamLimits())
    yield connection
    await connection.close()


@pytest.fixture
async def private(
    private_nats: ServerProcess, private_bus: Bus, tmp_path: Path, tiny: Path
) -> AsyncIterator[HostProcess]:
    """With two models ready, from a file of models, and room for no third one."""
    config = tmp_path / "models.yaml"
    config.write_text(
        f"models:\n- {{path: {DEMO_MODEL}, pinned: true, default: true}}\n"
        f"- {{path: {tiny}, name: small, aliases: [s], pinned: true, slots: 2}}\n"
        f"- {{path: {DEMO_MODEL}, name: third}}\n"
    )
    made = HostProcess(
        tmp_path,
        private_nats.url,
        private_bus,
        "mine",
        INFERFLUX_CONFIG=str(config),
        INFERFLUX_MODELS_MAX="2",
        INFERFLUX_WORKER_THREADS="1",
    )
    try:
        await made.start_ready()
        for name in (DEMO, "small"):
            await made.until_ready(name)
        yield made
    finally:
        made.kill()


def small(request_id: str, max_tokens: int = 8) -> worker_pb2.BatchItem:
    """A request to the tiny model."""
    return batch_item(request_id, model="tiny", max_tokens=max_tokens)


async def test_a_model_is_made_known_loaded_served_unloaded_and_forgotten(
    shared: HostProcess, tiny: Path
) -> None:
    known = await shared.register(tiny, aliases=["t", "small"])
    assert (known.code, known.model.card.name, known.model.state) == (0, "tiny", REGISTERED)
    assert list(known.model.aliases) == ["t", "small"]
    assert (known.model.card.context_length, known.model.card.quantization) == (128, "F32")
    loading = await shared.load("tiny")
    assert (loading.code, loading.model.worker_id) == (0, "host--1")
    assert await shared.until_ready("tiny") == "host--1"
    assert shared.model("tiny").load_s > 0
    before = len(shared.engines())
    assert (await shared.load("tiny")).model.state == READY, "it is loaded, once"
    first = await shared.ask("tiny", small("first"))
    assert len(token_ids(first)) == 8
    assert (await shared.unload("tiny")).code == 0
    gone = await shared.until_state("tiny", REGISTERED)
    assert (gone.worker_id, gone.reason) == ("", "")
    assert len(shared.engines()) == before - 1
    assert (await shared.unload("tiny")).model.state == REGISTERED, "there is nothing to unload"
    await shared.load("tiny")
    await shared.until_ready("tiny")
    assert token_ids(await shared.ask("tiny", small("again"))) == token_ids(first)
    await shared.unload("tiny")
    await shared.until_state("tiny", REGISTERED)
    assert (await shared.forget("tiny")).code == 0
    await shared.until(lambda: set(shared.states) == {DEMO})
    for reply in (await shared.load("tiny"), await shared.forget("tiny"), await shared.unload("tiny")):
        assert (reply.code, reply.reason) == (NOT_FOUND, "UNKNOWN_MODEL")


async def test_a_model_that_is_to_be_deterministic_and_cannot_says_so_from_its_load_on(
    shared: HostProcess, tmp_path: Path
) -> None:
    path = sliding_window_model().write(tmp_path / "window.gguf")
    await shared.register(path, deterministic=True)
    await shared.load("window")
    await shared.until_ready("window")
    found = {path.name: path for path in shared.model("window").card.paths}
    assert not found["deterministic"].is_on
    assert "sliding window" in found["deterministic"].reason
    open_item, other = (batch_item(name, model="window", max_tokens=4) for name in ("open", "other"))
    failed = (await shared.ask("window", open_item))[-1].failed
    assert (failed.reason, failed.field) == ("NOT_DETERMINISTIC", "params.deterministic")
    other.request.params.deterministic = False
    assert len(token_ids(await shared.ask("window", other))) == 4
    reply = await shared.register(path, deterministic=False)
    assert (reply.code, reply.reason) == (ABORTED, "MODEL_LOADED")
    await shared.unload("window")
    await shared.until_state("window", REGISTERED)
    assert (await shared.forget("window")).code == 0
    await shared.until(lambda: set(shared.states) == {DEMO})


async def test_a_file_that_cannot_be_served_is_refused_by_its_field_and_leaves_nothing(
    shared: HostProcess, tiny: Path, tmp_path: Path
) -> None:
    whole = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:500])
    other = tiny_model().having({"general.architecture": text("nonesuch")}).write(tmp_path / "other.gguf")
    hostile = tiny_model().having({"llama.block_count": u32(2**32 - 1)}).write(tmp_path / "hostile.gguf")
    plain = tmp_path / "plain.gguf"
    plain.write_text("hello")
    cases = [
        (await shared.register(tmp_path / "missing.gguf"), INVALID, "path", "no such file"),
        (await shared.register(tmp_path), INVALID, "path", "it is a folder"),
        (await shared.register(cut), INVALID, "path", "cut off"),
        (await shared.register(plain), INVALID, "path", "not a GGUF"),
        (await shared.register(other), INVALID, "path", "nonesuch.context_length is missing"),
        (await shared.register(hostile), INVALID, "path", "llama.block_count is 4294967295"),
        (await shared.register("tiny.gguf"), INVALID, "path", "absolute"),
        (await shared.register(""), INVALID, "path", "absolute"),
        (await shared.register(tiny, DEMO), EXISTS, "", "another model"),
        (await shared.register(tiny, aliases=[DEMO]), INVALID, "aliases", "already"),
        (await shared.register(tiny, "n" * 300), INVALID, "name", "at most"),
        (await shared.tell(), INVALID, "command", "unknown kind"),
    ]
    for reply, code, field, said in cases:
        assert (reply.code, reply.field) == (code, field), reply
        assert said in reply.message
        assert not reply.HasField("model")
    assert (await shared.load("missing")).code == NOT_FOUND
    await shared.until(lambda: set(shared.states) == {DEMO})


async def test_a_model_is_made_known_with_its_projector_and_is_loaded_with_it(
    shared: HostProcess, tmp_path: Path
) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(mixed_projector(_DEMO_WIDTH).data())
    alone = (await shared.register(DEMO_MODEL, "seeing")).model
    known = await shared.register(DEMO_MODEL, "seeing", mmproj_path=str(path))
    assert known.code == 0, known.message
    assert (known.model.card.takes_images, known.model.card.takes_audio) == (True, True)
    assert known.model.mmproj_path == str(path)
    # Encoded images are kept beside it.
    assert known.model.needs_bytes == alone.needs_bytes + path.stat().st_size + (256 << 20)
    projector = known.model.card.projector
    await shared.load("seeing")
    await shared.until_ready("seeing")
    assert shared.model("seeing").card.projector == projector
    path.write_bytes(mixed_projector(_DEMO_WIDTH, seed=7).data())
    refused = await shared.register(DEMO_MODEL, "seeing", mmproj_path=str(path))
    assert (refused.code, refused.reason) == (ABORTED, "MODEL_LOADED")
    await shared.unload("seeing")
    await shared.until_state("seeing", REGISTERED)
    other = await shared.register(DEMO_MODEL, "seeing", mmproj_path=str(path))
    assert other.model.card.projector not in ("", projector)
    assert (await shared.forget("seeing")).code == 0
    await shared.until(lambda: set(shared.states) == {DEMO})


async def test_a_projector_that_cannot_be_served_is_refused_by_its_field_and_leaves_nothing(
    shared: HostProcess, tmp_path: Path
) -> None:
    whole = tiny_projector(_DEMO_WIDTH).data()
    files = {
        "narrow.gguf": tiny_projector(128).data(),
        "cut.gguf": whole[:-1000],
        "plain.gguf": b"hello",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    cases = [
        (str(tmp_path / "narrow.gguf"), "n_embd = 256", "n_embd = 128"),
        (str(tmp_path / "cut.gguf"), "failed to load", ""),
        (str(tmp_path / "plain.gguf"), "not a GGUF", ""),
        (str(tmp_path / "missing.gguf"), "No such file", ""),
        (str(DEMO_MODEL), "no projector", ""),
        ("mmproj.gguf", "absolute", ""),
    ]
    for path, *said in cases:
        reply = await shared.register(DEMO_MODEL, "seeing", mmproj_path=path)
        assert (reply.code, reply.field) == (INVALID, "mmproj_path"), reply
        assert all(each in reply.message for each in said), reply.message
        assert not reply.HasField("model")
    assert (await shared.load("seeing")).code == NOT_FOUND
    await shared.until(lambda: set(shared.states) == {DEMO})


async def test_a_load_that_fails_says_why_and_can_be_tried_again(
    shared: HostProcess, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lame.gguf"
    path.write_bytes(tiny.read_bytes()[:-1000])
    assert (await shared.register(path)).code == 0
    for _ in range(2):
        assert (await shared.load("lame")).code == 0
        failed = await shared.until_state("lame", FAILED)
        assert failed.reason.startswith(f"{path}: ")
        assert failed.worker_id == ""
        path.touch()
    assert len(token_ids(await shared.ask(DEMO, batch_item("beside")))) == 24
    assert (await shared.forget("lame")).code == 0
    await shared.until(lambda: set(shared.states) == {DEMO})


async def test_a_model_that_can_be_loaded_no_more_fails_says_why_and_can_be_tried_again(
    shared: HostProcess, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gone.gguf"
    path.write_bytes(tiny.read_bytes())
    before = shared.engines()
    await shared.register(path)
    await shared.load("gone")
    worker_id = await shared.until_ready("gone")
    (victim,) = shared.engines(but=before)
    path.unlink()
    os.kill(victim, signal.SIGKILL)
    failed = await shared.until_state("gone", FAILED)
    assert failed.reason.startswith(f"{path}: ")
    assert "No such file" in failed.reason
    assert failed.worker_id == ""
    # It is not pinned: it waits for a request or a command.
    assert failed.retry_unix_ms == 0
    left = [e for e in shared.events if e.HasField("worker_left") and e.worker_id == worker_id]
    assert left
    assert len(token_ids(await shared.ask(DEMO, batch_item("beside-a-failure")))) == 24
    path.write_bytes(tiny.read_bytes())
    assert (await shared.load("gone")).model.state == model_pb2.MODEL_STATE_LOADING
    await shared.until_ready("gone")
    await shared.unload("gone")
    await shared.until_state("gone", REGISTERED)
    await shared.forget("gone")


async def test_a_stream_is_the_same_while_another_model_comes_and_goes(
    shared: HostProcess, tiny: Path
) -> None:
    expected = token_ids(await shared.ask(DEMO, batch_item("alone", max_tokens=LONG)))
    await shared.register(tiny)
    stream = await shared.read("beside-a-load")
    await shared.send_to(DEMO, batch_item("beside-a-load", max_tokens=LONG))
    reading = asyncio.create_task(read_to_end(stream))
    await shared.load("tiny")
    await shared.until_ready("tiny")
    beside = await shared.ask("tiny", small("small"))
    await shared.unload("tiny")
    await shared.until_state("tiny", REGISTERED)
    chunks = await reading
    stream.close()
    assert token_ids(chunks) == expected
    assert [chunk.offset for chunk in chunks] == sorted(chunk.offset for chunk in chunks)
    assert chunks[-1].HasField("finished")
    assert len(token_ids(beside)) == 8
    await shared.forget("tiny")


async def test_what_runs_ends_before_its_model_is_unloaded(shared: HostProcess, tiny: Path) -> None:
    await shared.register(tiny)
    await shared.load("tiny")
    await shared.until_ready("tiny")
    stream = await shared.read("draining")
    await shared.send_to("tiny", small("draining", max_tokens=100))
    await shared.unload("tiny")
    chunks = await read_to_end(stream)
    stream.close()
    assert (len(token_ids(chunks)), chunks[-1].HasField("finished")) == (100, True)
    await shared.until_state("tiny", REGISTERED)
    await shared.forget("tiny")


async def test_a_loaded_model_that_is_forgotten_ends_what_runs_and_is_gone(
    shared: HostProcess, tiny: Path
) -> None:
    await shared.register(tiny)
    await shared.load("tiny")
    await shared.until_ready("tiny")
    stream = await shared.read("last")
    await shared.send_to("tiny", small("last", max_tokens=100))
    forgotten = await shared.forget("tiny")
    assert (forgotten.code, forgotten.model.state) == (0, model_pb2.MODEL_STATE_UNLOADING)
    chunks = await read_to_end(stream)
    stream.close()
    assert len(token_ids(chunks)) == 100
    await shared.until(lambda: "tiny" not in shared.states)
    assert (await shared.load("tiny")).reason == "UNKNOWN_MODEL"


async def test_a_model_in_several_files_is_served_as_one(
    shared: HostProcess, tiny: Path, tmp_path: Path
) -> None:
    parts = tiny_model().in_files(3)
    paths = [
        part.write(tmp_path / f"parted-{number:05d}-of-00003.gguf") for number, part in enumerate(parts, 1)
    ]
    known = await shared.register(paths[1])
    assert (known.code, known.model.card.name, known.model.path) == (0, "parted", str(paths[0]))
    await shared.register(tiny)
    answers = []
    for name in ("parted", "tiny"):
        await shared.load(name)
        await shared.until_ready(name)
        answers.append(token_ids(await shared.ask(name, batch_item(f"of-{name}", model=name, max_tokens=8))))
        await shared.forget(name)
        await shared.until(lambda: name not in shared.states)  # noqa: B023 - awaited here
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["a\nb", "a\x00", "\x1b[31m", "a\u2028b"])
async def test_a_name_that_would_break_a_line_is_refused(shared: HostProcess, tiny: Path, name: str) -> None:
    refused = await shared.register(tiny, name=name)
    assert (refused.code, refused.field) == (INVALID, "name")
    refused = await shared.register(tiny, aliases=[name])
    assert (refused.code, refused.field) == (INVALID, "aliases")


async def test_an_engine_that_is_killed_takes_no_other_model_with_it(private: HostProcess) -> None:
    expected = token_ids(await private.ask(DEMO, batch_item("alone", max_tokens=LONG)))
    small_id = await private.until_ready("small")
    victim = private.engine_of(private.model("small").path)
    stream = await private.read("undisturbed")
    await private.send_to(DEMO, batch_item("undisturbed", max_tokens=LONG))
    reading = asyncio.create_task(read_to_end(stream))
    os.kill(victim, signal.SIGKILL)
    await private.until(lambda: any(e.HasField("engine_died") for e in private.events))
    assert {e.worker_id for e in private.events if e.HasField("engine_died")} == {small_id}
    chunks = await reading
    stream.close()
    assert token_ids(chunks) == expected
    assert chunks[-1].HasField("finished")
    await private.until(lambda: victim not in private.engines())
    await private.until_ready("small")
    asked = batch_item("after", model="small", max_tokens=8)
    assert len(token_ids(await private.ask("small", asked))) == 8


async def test_a_host_that_is_killed_is_reported_as_each_of_its_workers(private: HostProcess) -> None:
    expected = {(worker_id, status.incarnation) for worker_id, status in private.statuses.items()}
    assert {worker_id for worker_id, _ in expected} == {"mine", "mine--1"}
    private.kill()
    await private.until(lambda: len(private.deaths) == len(expected))
    assert set(private.deaths) == expected


async def test_a_file_of_models_says_what_is_loaded_and_how_much(private: HostProcess) -> None:
    assert private.host is not None
    assert private.host.models_max == 2
    first, second, third = (private.model(name) for name in (DEMO, "small", "third"))
    assert [(m.is_pinned, m.is_default) for m in (first, second, third)] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert list(second.aliases) == ["s"]
    assert private.statuses[second.worker_id].slots == 2
    refused = await private.load("third")
    assert (refused.code, refused.reason) == (EXHAUSTED, "NO_PLACE_FOR_MODEL")
    assert "2 models loaded, of at most 2" in refused.message
    taken = await private.register(DEMO_MODEL, "s")
    assert (taken.code, taken.reason) == (EXISTS, "MODEL_NAME_TAKEN")


async def test_a_model_without_room_is_refused_with_both_numbers_and_old_terms_do_not_count(
    nats_url: str, bus: Bus, tiny: Path, tmp_path: Path
) -> None:
    host = HostProcess(tmp_path, nats_url, bus, "narrow", INFERFLUX_MODELS_BYTES="1MB")
    try:
        await host.start_ready()
        assert (await host.tell(term=5, register=host_pb2.RegisterModelFile(path=str(tiny)))).code == 0
        refused = await host.tell(term=5, load=host_pb2.LoadHostedModel(name="tiny"))
        assert (refused.code, refused.reason) == (EXHAUSTED, "NO_MEMORY_FOR_MODEL")
        assert "needs 1" in refused.message
        assert "1 MiB of 1 MiB are free" in refused.message
        old = await host.tell(term=4, forget=host_pb2.ForgetModelFile(name="tiny"))
        assert (old.code, old.reason) == (ABORTED, "OLD_TERM")
        await host.until_state("tiny", REGISTERED)
        host.send(signal.SIGTERM)
        assert await host.wait() == 0
    finally:
        host.kill()


async def test_models_with_full_host_tiers_hold_no_more_than_one_budget(
    nats_url: str, bus: Bus, tmp_path: Path
) -> None:
    """A third of what the prompts would fill without it."""
    budget = 12 << 20
    host = HostProcess(
        tmp_path,
        nats_url,
        bus,
        "tiers",
        INFERFLUX_WORKER_HOST_BYTES=str(budget),
        INFERFLUX_WORKER_KV_CELLS="512",
        INFERFLUX_WORKER_THREADS="1",
    )
    names = [f"m{i}" for i in range(3)]

    def held() -> dict[str, int]:
        return {name: host.statuses[host.model(name).worker_id].host_tier.bytes for name in names}

    def limits() -> list[int]:
        return [host.statuses[host.model(name).worker_id].swap_bytes for name in names]

    try:
        await host.start_ready()
        for name in names:
            await host.register(DEMO_MODEL, name)
            await host.load(name)
        for name in names:
            await host.until_ready(name)
        await host.until(lambda: min(limits()) >= budget // 4)
        for number in range(12):
            for name in names:
                prompt = [300 + (number * 131 + i * 7) % 1400 for i in range(400)]
                asked = f"{name}-{number}"
                await host.ask(name, batch_item(asked, model=name, prompt=prompt, max_tokens=1))
                assert sum(held().values()) <= budget
        await host.until(lambda: min(held().values()) > 0)
        assert budget // 2 < sum(held().values()) <= budget
        assert sum(limits()) <= budget
        await host.unload("m0")
        await host.until_state("m0", REGISTERED)
        names.remove("m0")
        await host.until(lambda: sum(limits()) > budget * 0.9)
        assert sum(limits()) <= budget
    finally:
        host.kill()
