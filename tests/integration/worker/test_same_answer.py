"""Deterministic requests: the same tokens whatever else is cached or runs. An engine alone, each model."""

from __future__ import annotations

import functools

import pytest
from harness.model_paths import NAMES, model_path
from harness.serving import Served, load
from harness.worker import batch_item

from benchmarks.load.engine_loop import SLOTS
from benchmarks.same_answer.trial import STATES, Trial, prompts_of
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend

each_model = pytest.mark.parametrize("name", NAMES)
PROMPTS, ANSWER = 2, 10


@functools.cache
def backend(name: str, *, flash_attention: bool = True) -> Backend:
    return load(
        model_path(name),
        slots=SLOTS,
        sequences=32,
        kv_cells=2048,
        context_length=512,
        threads=2,
        flash_attention=flash_attention,
    )


@functools.cache
def trial(name: str) -> tuple[Trial, list[list[int]]]:
    """A trial, and what an empty engine answers."""
    loaded = backend(name)
    made = Trial(loaded, prompts_of(loaded, PROMPTS), ANSWER, deterministic=True)
    return made, made.alone


@each_model
@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_the_same_answer_comes_again(name: str, state: str) -> None:
    tried, expected = trial(name)
    assert len({tuple(answer) for answer in expected}) == PROMPTS
    assert tried.answers(state) == expected


def asked(name: str, *, value: bool | None = True, **fields: object) -> worker_pb2.BatchItem:
    item = batch_item(name, **fields)  # type: ignore[arg-type]
    if value is not None:
        item.request.params.deterministic = value
    return item


def test_one_that_is_parked_keeps_its_cells_until_another_needs_them() -> None:
    served = Served(backend("demo"))
    long = list(range(300, 600))
    served.run(asked("alone", prompt=long, max_tokens=40))
    served.start_and_step(asked("one", prompt=long, max_tokens=40), until_tokens=5)
    served.engine.deschedule(engine_pb2.EngineDeschedule(key="t.one", epoch=1, run=1))
    served.engine.start(asked("other", prompt=long[::-1], max_tokens=100, slot=1))
    served.finish("other")
    served.resume("t.one", 0)
    served.finish("one")
    assert served.tokens["one"] == served.tokens["alone"]
    assert served.cached["one"] == 0, "it shares nothing"


def test_several_wait_for_room_and_all_are_answered() -> None:
    served = Served(backend("demo"))
    prompts = {f"r{i}": [400 + i, *range(300, 440)] for i in range(5)}
    for name, prompt in prompts.items():
        served.run(asked(f"{name}-alone", prompt=prompt, max_tokens=30))
    served.run(*(asked(name, prompt=prompt, max_tokens=30) for name, prompt in prompts.items()))
    assert all(served.tokens[name] == served.tokens[f"{name}-alone"] for name in prompts)


@pytest.mark.long
@pytest.mark.parametrize("is_the_models", [False, True])
def test_a_model_that_cannot_says_so_and_goes_on(is_the_models: bool) -> None:
    own = backend.__wrapped__("demo", flash_attention=False)  # an engine begins with an empty cache
    served = Served(own, is_deterministic=is_the_models)
    served.run(asked("one", value=None if is_the_models else True))
    failed = served.chunks[-1].failed
    assert (failed.reason, failed.field) == ("NOT_DETERMINISTIC", "params.deterministic")
    assert "without flash attention" in failed.message
    served.run(asked("other", value=False if is_the_models else None))
    assert len(served.tokens["other"]) == 24
