"""The null engine: answers that follow from their seed, made in slots and KV cells as any engine's are."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from inferflux.v1 import engine_pb2, generation_pb2, model_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.step.clock import Clock
from inferflux.worker.null.answers import answer_text, token_at
from inferflux.worker.null.core import NullCore, Rates
from inferflux.worker.null.engine import NullEngine
from inferflux.worker.processes.engine_host import EngineLoadError
from inferflux.worker.settings import WorkerSettings

VOCABULARY = 4000
STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH
PARKED = scheduler_pb2.RESIDENCE_PARKED


class World:
    """A core, and the chunks and reports that came from it."""

    def __init__(self, *, kv_cells: int = 1000, prefill: int = 100) -> None:
        self.now_s = 1000.0
        self.core = NullCore(
            "w",
            Rates(step_s=0.1, prefill_tokens_per_s=prefill * 10),
            kv_cells=kv_cells,
            vocabulary_size=VOCABULARY,
            clock=Clock(lambda: self.now_s, lambda: self.now_s),
        )
        self.chunks: defaultdict[str, list[tokens_pb2.TokenChunk]] = defaultdict(list)
        self.stats = engine_pb2.StepStats()

    def start(
        self,
        name: str,
        *,
        slot: int = 0,
        prompt: int = 10,
        urgency: float = 0.0,
        stop: tuple[str, ...] = (),
        max_tokens: int = 8,
    ) -> None:
        params = generation_pb2.GenerationParams(max_tokens=max_tokens, stop=stop)
        params.sampling.seed = 7
        request = scheduler_pb2.InferenceRequest(
            tenant="acme",
            request_id=name,
            epoch=1,
            model="m",
            attempt_id=f"attempt-{name}",
            prompt_token_ids=[1] * prompt,
            params=params,
        )
        item = worker_pb2.BatchItem(request=request, slot=slot, urgency_key=urgency)
        self.core.start(item)

    def step(self) -> engine_pb2.StepReport:
        self.core.step()
        report = self.core.take_report()
        found = engine_pb2.StepReport() if report is None else report.step
        for emission in found.emissions:
            chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
            self.chunks[chunk.request_id].append(chunk)
        self.stats = found.stats
        return found

    def until_idle(self) -> None:
        while self.core.is_running:
            self.step()

    def text(self, name: str) -> str:
        return "".join(chunk.text for chunk in self.chunks[name])

    def tokens(self, name: str) -> list[int]:
        return [token for chunk in self.chunks[name] for token in chunk.token_ids]


EXPECTED = [token_at(7, index, VOCABULARY) for index in range(8)]


def test_an_answer_is_a_function_of_seed_and_index() -> None:
    world = World()
    world.start("a")
    world.until_idle()
    assert world.tokens("a") == EXPECTED
    assert world.text("a") == answer_text(7, 8, VOCABULARY)
    assert [chunk.offset for chunk in world.chunks["a"]] == list(range(8))
    last = world.chunks["a"][-1]
    assert (last.finished.reason, last.finished.usage.completion_tokens) == (LENGTH, 8)
    assert (last.attempt_id, last.model) == ("attempt-a", "m")
    first = world.chunks["a"][0]
    assert (first.started.worker_id, first.attempt_id) == ("w", "attempt-a")
    assert not any(chunk.attempt_id for chunk in world.chunks["a"][1:-1])
    assert len({tuple(token_at(seed, i, VOCABULARY) for i in range(8)) for seed in range(100)}) == 100


def test_prompts_take_the_steps_of_their_rate_most_urgent_first() -> None:
    world = World(prefill=100)
    world.start("late", slot=0, prompt=150, urgency=2.0)
    world.start("urgent", slot=1, prompt=60, urgency=1.0)
    first = world.step()
    assert [(p.key, p.computed_tokens) for p in first.prefilled] == [("acme.late", 40)]
    assert len(world.tokens("urgent")) == 1
    assert world.stats.prefill_tokens == 100
    world.step()
    assert world.tokens("late") == []
    world.step()
    assert (len(world.tokens("urgent")), len(world.tokens("late"))) == (3, 1)
    assert world.stats.kv_cells_used == 150 + 62


def test_a_descheduled_request_keeps_its_cells_and_the_latest_assignment_of_a_slot_counts() -> None:
    world = World()
    world.start("first")
    world.step()
    world.start("second")
    report = world.step()
    assert [(r.key, r.residence) for r in report.residences if r.residence == PARKED] == [
        ("acme.first", PARKED)
    ]
    assert world.stats.parked == 1
    assert world.stats.kv_cells_used > world.stats.kv_cells_reserved > 0
    world.until_idle()
    assert world.tokens("second") == EXPECTED


def test_stop_strings_end_an_answer_and_are_not_in_it() -> None:
    world = World()
    world.start("a", stop=(f"{EXPECTED[3]} ",))
    world.until_idle()
    assert world.text("a") == "".join(f" {token}" for token in EXPECTED[:3]) + " "
    assert world.chunks["a"][-1].finished.reason == STOP


def engine_of(
    reports: list[engine_pb2.EngineReport], deaths: list[str], config: engine_pb2.EngineConfig
) -> NullEngine:
    async def on_report(report: engine_pb2.EngineReport) -> None:
        reports.append(report)

    async def on_death(why: str, _killer: str) -> None:
        deaths.append(why)

    return NullEngine(
        config,
        Rates(0.001, 1e6),
        on_report,
        on_death,
        kv_cells=512,
        vocabulary_size=VOCABULARY,
        context_length=1024,
    )


async def test_a_killed_engine_tells_why_and_begins_anew() -> None:
    reports: list[engine_pb2.EngineReport] = []
    deaths: list[str] = []
    engine = engine_of(reports, deaths, engine_pb2.EngineConfig(slots=2))
    running = asyncio.create_task(engine.run())
    while not reports:
        await asyncio.sleep(0)
    assert (reports[0].ready.kv_cells, reports[0].ready.context_length) == (512, 512)
    engine.kill("stuck")
    while len(reports) < 2:
        await asyncio.sleep(0.01)
    assert deaths == ["stuck"]
    engine.send(engine_pb2.EngineCommand(flush=engine_pb2.EngineFlush()))
    while not reports[-1].HasField("flushed"):
        await asyncio.sleep(0)
    await engine.stop()
    await running


async def test_a_model_that_embeds_is_refused() -> None:
    config = engine_pb2.EngineConfig(role=model_pb2.MODEL_ROLE_EMBEDDING, model_path="/m.gguf")
    with pytest.raises(EngineLoadError, match=r"/m\.gguf: the null engine does not embed"):
        await engine_of([], [], config).run()


def test_many_workers_of_a_process_have_names_of_their_own_and_no_models() -> None:
    many = WorkerSettings(id="w", engine="null", null_workers=3)
    assert [member.id for member in many.members] == ["w_0", "w_1", "w_2"]
    assert WorkerSettings(id="w", engine="null").members[0].id == "w"
    with pytest.raises(ValueError, match="INFERFLUX_WORKER_ENGINE is null"):
        WorkerSettings(id="w", null_workers=3)
    with pytest.raises(ValueError, match="leaves no room"):
        WorkerSettings(id="w" * 60, engine="null", null_workers=3)


def test_it_has_no_state_for_others_and_takes_none() -> None:
    core = World().core
    core.obey(engine_pb2.EngineCommand(export_state=engine_pb2.EngineExport(id=3, key="t.a")))
    core.obey(engine_pb2.EngineCommand(import_state=engine_pb2.EngineImport(id=4, key="t.a", path="p")))
    core.obey(engine_pb2.EngineCommand(import_state=engine_pb2.EngineImport(id=5, is_over=True)))
    report = core.take_report()
    assert report is not None
    assert [(each.id, each.is_last, bool(each.error)) for each in report.step.pieces] == [(3, True, True)]
    assert [(each.id, bool(each.error)) for each in report.step.imported] == [(4, True)]
