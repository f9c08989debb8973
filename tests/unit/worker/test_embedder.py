"""The embedder's step: texts of several jobs together, the most urgent first, and what is told of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.embedder.core import Embedder
from inferflux.worker.embedder.jobs import Tokens, Vector
from inferflux.worker.engine.step.clock import Clock


class Model:
    """A vector is the first token of its text. Remembers the texts of each step."""

    step_tokens = 8
    most_texts = 4

    def __init__(self) -> None:
        self.steps: list[list[list[int]]] = []
        self.gives = 1.0

    def embed(self, texts: Sequence[Tokens]) -> list[Vector]:
        self.steps.append([text.tolist() for text in texts])
        return [np.array([text[0] * self.gives], np.float32) for text in texts]


class World:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.model = Model()
        self.embedder = Embedder(self.model, clock=Clock(lambda: self.now_s, lambda: self.now_s))

    def start(
        self, name: str, *texts: list[int], slot: int = 0, urgency: float = 0.0, deadline_s: int = 0
    ) -> None:
        request = scheduler_pb2.InferenceRequest(
            tenant="acme",
            request_id=name,
            epoch=1,
            model="m",
            attempt_id=f"attempt-{name}",
            prompt_token_ids=[token for text in texts for token in text],
            deadline_unix_ms=deadline_s * 1000,
            embedding=scheduler_pb2.EmbeddingTask(text_tokens=map(len, texts)),
        )
        self.embedder.start(worker_pb2.BatchItem(request=request, slot=slot, urgency_key=urgency))

    def step(self) -> engine_pb2.StepReport:
        self.embedder.step()
        report = self.embedder.take_report()
        return engine_pb2.StepReport() if report is None else report.step


def ends_of(report: engine_pb2.StepReport) -> dict[str, str]:
    return {ended.key.removeprefix("acme."): ended.outcome for ended in report.finished}


def chunks_of(report: engine_pb2.StepReport) -> dict[str, tokens_pb2.TokenChunk]:
    chunks = [tokens_pb2.TokenChunk.FromString(emission.chunk) for emission in report.emissions]
    return {chunk.request_id: chunk for chunk in chunks}


def vectors_of(chunk: tokens_pb2.TokenChunk) -> list[float]:
    return [float(np.frombuffer(value, "<f4")[0]) for value in chunk.vectors.values]


def test_texts_of_several_jobs_share_a_step() -> None:
    world = World()
    world.start("a", [1, 1], [2], slot=0)
    world.start("b", [3, 3], slot=1)
    report = world.step()
    assert world.model.steps == [[[1, 1], [2], [3, 3]]]
    assert ends_of(report) == {"a": "stop", "b": "stop"}
    chunks = chunks_of(report)
    assert vectors_of(chunks["a"]) == [1.0, 2.0]
    assert chunks["a"].finished.usage.prompt_tokens == 3
    assert chunks["a"].finished.usage.completion_tokens == 0
    assert chunks["a"].attempt_id == "attempt-a"
    assert report.stats.prefill_tokens == 5


def test_the_most_urgent_job_comes_first_and_a_step_has_an_end() -> None:
    world = World()
    world.start("late", [1] * 5, [2] * 5, slot=0, urgency=2.0)
    world.start("urgent", [3] * 5, slot=1, urgency=1.0)
    first, second, third = world.step(), world.step(), world.step()
    assert world.model.steps == [[[3] * 5], [[1] * 5], [[2] * 5]]
    assert (ends_of(first), ends_of(second), ends_of(third)) == ({"urgent": "stop"}, {}, {"late": "stop"})
    assert [(told.key, told.computed_tokens) for told in second.prefilled] == [("acme.late", 5)]


def test_a_text_that_is_longer_than_a_step_is_one_by_itself() -> None:
    world = World()
    world.start("long", [1] * 20, [2], slot=0)
    world.step()
    assert world.model.steps == [[[1] * 20]]


def test_a_step_has_no_more_texts_than_the_model_takes() -> None:
    world = World()
    world.start("many", *([[1]] * 6))
    world.step()
    world.step()
    assert [len(step) for step in world.model.steps] == [4, 2]


def test_a_descheduled_job_goes_on_where_it_was() -> None:
    world = World()
    world.start("a", [1] * 5, [2] * 5)
    world.step()
    world.embedder.deschedule(engine_pb2.EngineDeschedule(key="acme.a", epoch=1, run=0))
    parked = world.step()
    assert parked.residences[-1].residence == scheduler_pb2.RESIDENCE_PARKED
    assert parked.stats.parked == 1
    assert world.embedder.idle_s() is None
    world.embedder.resume(engine_pb2.EngineResume(key="acme.a", epoch=1, run=1, slot=3))
    report = world.step()
    assert world.model.steps == [[[1] * 5], [[2] * 5]]
    assert vectors_of(chunks_of(report)["a"]) == [1.0, 2.0]


def test_the_latest_assignment_of_a_slot_counts() -> None:
    world = World()
    world.start("first", [1] * 5, slot=0)
    world.start("second", [2] * 5, slot=0)
    report = world.step()
    assert ends_of(report) == {"second": "stop"}
    assert world.model.steps == [[[2] * 5]]


def test_a_cancelled_job_ends_with_a_chunk_and_a_dropped_one_without() -> None:
    world = World()
    world.start("cancelled", [1] * 5, [2] * 5, slot=0)
    world.start("dropped", [3] * 8, slot=1)
    world.step()
    world.embedder.cancel("acme.cancelled", is_silent=False)
    world.embedder.cancel("acme.dropped", is_silent=True)
    world.embedder.cancel("acme.unknown", is_silent=False)
    report = world.step()
    assert ends_of(report) == {"cancelled": "cancelled"}
    chunk = chunks_of(report)["cancelled"]
    assert chunk.finished.reason == generation_pb2.FINISH_REASON_CANCELLED
    assert chunk.finished.usage.prompt_tokens == 5
    assert not chunk.HasField("vectors")
    assert report.stats.sequences == 0
    assert len(world.model.steps) == 1


def test_a_job_whose_deadline_has_passed_fails() -> None:
    world = World()
    world.start("late", [1], deadline_s=1001)
    world.now_s = 1002.0
    report = world.step()
    assert ends_of(report) == {"late": "deadline_exceeded"}
    assert world.model.steps == []


def test_numbers_that_are_not_finite_fail_their_job_alone() -> None:
    world = World()
    world.model.gives = float("inf")
    world.start("bad", [1])
    report = world.step()
    assert ends_of(report) == {"bad": "not_finite"}
    world.model.gives = 1.0
    world.start("good", [1])
    assert ends_of(world.step()) == {"good": "stop"}


def test_clearing_a_cache_is_answered() -> None:
    world = World()
    clear = engine_pb2.EngineClearCache(id=7, clear=scheduler_pb2.ClearCache(prefixes=True))
    world.embedder.obey(engine_pb2.EngineCommand(clear_cache=clear))
    assert [cleared.id for cleared in world.step().cleared] == [7]
