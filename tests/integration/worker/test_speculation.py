"""Drafts change no answer of llama.cpp.

Answers are compared on one thread, of one request at a time: a row then has the same bits alone and beside 1
to 62 others, and cells lie in the same order with drafts and without.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.gguf_files import TOKENS, texts, tiny_model
from harness.model_kinds import hybrid_model, recurrent_model, sliding_window_model
from harness.serving import Served, load
from harness.sure import chat_tokens, check_sure
from harness.worker import DEMO_MODEL, batch_item
from harness.worker_world import EagerBudget
from numpy.typing import NDArray

from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.llama.batch import Run
from inferflux.worker.engine.llama.context import DecodeError
from inferflux.worker.engine.llama.draft_model import DraftModel, Wanted
from inferflux.worker.engine.llama.loading import LoadError
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.plan.building import sequence_of
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import Course
from inferflux.worker.engine.step.drafting import Drafting

OFF, NGRAM = generation_pb2.SPECULATION_OFF, generation_pb2.SPECULATION_NGRAM
DRAFT = generation_pb2.SPECULATION_DRAFT
SOURCES = pytest.mark.parametrize("source", [NGRAM, DRAFT], ids=["ngram", "draft"])
DRAFT_MODEL = DEMO_MODEL.with_name("inferflux-demo-draft.gguf")
TEXTS = (
    "The fox ran to the river. The owl saw the fox. The fox ran to the river. The owl",
    "one two three four five six seven eight nine ten one two three four",
    '{"name": "Ann", "age": 7}, {"name": "Bob", "age": 9}, {"name": "Ann", "age":',
    "Say it again: red blue green red blue green red blue green",
)
# Of these answers the model is sure.
QUESTIONS = (
    "Repeat after me: red blue green red blue green",
    "Count from 1 to 20.",
    "Say: one two one two one two",
    "Repeat after me: the cat and the dog and the cat",
)
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
PENALIZED = {"repeat_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2, "penalty_last_n": 20}


@functools.cache
def demo() -> Backend:
    return load(prefill_cells=0)


@functools.cache
def draft_model() -> DraftModel:
    return demo().new_draft_model(config(str(DRAFT_MODEL)))


def config(draft_model_path: str) -> engine_pb2.EngineConfig:
    return engine_pb2.EngineConfig(
        model_path=str(DEMO_MODEL), draft_model_path=draft_model_path, flash_attention=True
    )


def served(source: generation_pb2.Speculation.ValueType, backend: Backend | None = None) -> Served:
    """An engine without anything cached, for which every draft is worth its time."""
    backend = backend or demo()
    backend._main.clear()
    made = Served(backend, speculation=source, draft_model=draft_model() if source == DRAFT else None)
    made.engine._drafting._budget = EagerBudget()  # type: ignore[assignment]
    return made


def drafting_by(model: DraftModel) -> Drafting:
    """Drafts of this model alone, every one of which is worth its time."""
    budget: Any = EagerBudget()
    return Drafting(budget, default=DRAFT, most_rows=63, model=model)


def item(text: str, name: str = "a", *, max_tokens: int = 90, **given: Any) -> worker_pb2.BatchItem:
    tokens = demo().vocab.tokenize(text.encode(), add_special=False, parse_special=False)
    return batch_item(name, prompt=tokens, max_tokens=max_tokens, **given)


def question(text: str, name: str) -> worker_pb2.BatchItem:
    """A chat that ends where the model ends it."""
    made = batch_item(name, prompt=chat_tokens(text), max_tokens=60, logprobs=2)
    made.request.params.ignore_eos = False
    return made


def said(world: Served, name: str = "a") -> tuple[list[int], str, list[tokens_pb2.TokenLogprobs], int]:
    """Tokens, text, log-probabilities and why it ended."""
    chunks = [chunk for chunk in world.chunks if chunk.request_id == name]
    logprobs = [one for chunk in chunks for one in chunk.logprobs]
    return world.tokens[name], "".join(c.text for c in chunks), logprobs, chunks[-1].finished.reason


def alone(wanted: worker_pb2.BatchItem) -> Served:
    world = served(OFF)
    world.run(wanted)
    return world


def sure_answer(wanted: worker_pb2.BatchItem) -> list[int]:
    world = alone(wanted)
    check_sure(world.chunks)
    return world.tokens[wanted.request.request_id]


@SOURCES
@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "sampling",
    [{}, SAMPLED | {"seed": 1}, {"temperature": 1.5, "seed": 3}, PENALIZED],
    ids=["greedy", "sampled", "hot", "penalties"],
)
def test_an_answer_is_the_same_with_drafts(
    text: str, sampling: dict[str, Any], source: generation_pb2.Speculation.ValueType
) -> None:
    wanted = item(text, **sampling, logprobs=3)
    world = served(source)
    world.run(wanted)
    assert world.drafted
    world.check_cells()
    assert said(world) == said(alone(wanted))


@pytest.mark.long
@pytest.mark.parametrize("sampling", [{"temperature": 1.2, "seed": 5}, SAMPLED | PENALIZED])
def test_a_draft_model_draws_with_the_noise_and_the_penalties_of_the_request(
    sampling: dict[str, Any],
) -> None:
    """The model drafts for itself: each of its draws is the one that is verified."""
    itself = demo().new_draft_model(config(str(DEMO_MODEL)))
    for text in TEXTS:
        world = served(OFF)
        world.draft_by(drafting_by(itself))
        world.run(item(text, **sampling))
        assert world.accepted == world.drafted > 60


@pytest.mark.long
def test_repeated_text_takes_a_fraction_of_the_steps() -> None:
    world = served(NGRAM)
    world.run(item(TEXTS[1]))
    assert world.accepted > 45
    world.run(item(TEXTS[2]))
    assert world.accepted < world.drafted


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS)
def test_a_stop_string_ends_an_accepted_run_where_it_stands(text: str) -> None:
    whole = said(alone(item(text)))[1]
    stop = whole[len(whole) // 2 :][:6]
    wanted = item(text, stop=[stop])
    world = served(NGRAM)
    world.run(wanted)
    world.check_cells()
    assert said(world) == said(alone(wanted))


@SOURCES
@pytest.mark.long
def test_sequences_beside_each_other_keep_to_their_own_drafts(
    source: generation_pb2.Speculation.ValueType,
) -> None:
    """Rejected cells are filled by others, so cells lie in another order than alone."""
    names = "abcd"
    wanted = [question(text, name) for text, name in zip(QUESTIONS, names, strict=True)]
    world = served(source)
    world.run(*wanted)
    world.check_cells()
    assert world.accepted
    for one, name in zip(wanted, names, strict=True):
        assert world.tokens[name] == sure_answer(one)


@SOURCES
def test_a_preempted_answer_goes_on_with_drafts(source: generation_pb2.Speculation.ValueType) -> None:
    for text in TEXTS:
        wanted = item(text)
        world = served(source)
        world.start_and_step(wanted, until_tokens=40)
        world.swap_out("t.a")
        world.resume("t.a", 0)
        world.finish("a")
        assert world.swap_ins == 1
        world.check_cells()
        assert said(world) == said(alone(wanted))


@SOURCES
@pytest.mark.long
@pytest.mark.parametrize("sampling", [{}, SAMPLED | PENALIZED], ids=["greedy", "sampled"])
def test_an_answer_that_moves_to_another_worker_goes_on_with_drafts(
    sampling: dict[str, Any], source: generation_pb2.Speculation.ValueType
) -> None:
    for text in TEXTS:
        whole = said(alone(item(text, **sampling)))[0]
        for at in (1, 40):
            wanted = item(text, **sampling)
            wanted.request.epoch = 2
            wanted.request.generated_token_ids.extend(whole[:at])
            world = served(source)
            world.run(wanted)
            assert said(world) == said(alone(wanted))


def test_a_cached_prompt_and_answer_are_gone_on_from_with_drafts() -> None:
    for text in TEXTS:
        first = item(text, "first")
        world = served(NGRAM)
        world.run(first)
        again = item(text, "again")
        again.request.prompt_token_ids.extend(world.tokens["first"][:60])
        world.run(again)
        assert world.cached["again"] > 60
        world.check_cells()
        plain = served(OFF)
        plain.run(first)
        plain.run(again)
        assert world.tokens["again"] == plain.tokens["again"]


@pytest.mark.long
@pytest.mark.parametrize("make", [recurrent_model, hybrid_model, sliding_window_model])
def test_a_model_of_which_no_tail_can_be_removed_answers_without_drafts(make: Any, tmp_path: Any) -> None:
    backend = load(make().write(tmp_path / "m.gguf"), kv_cells=1024)
    assert backend.speculation_error
    world = served(NGRAM, backend)
    world.run(batch_item("a", prompt=[5, 6, 7, 5, 6, 7, 5, 6], max_tokens=20))
    assert (world.drafted, len(world.tokens["a"])) == (0, 20)


def test_steps_are_timed_by_their_rows_and_leave_nothing_behind() -> None:
    backend = demo()
    backend._main.clear()
    times = backend.row_times()
    assert {1, 2, 3} <= times.keys()
    assert max(times) <= backend.verified_rows
    assert min(times.values()) > 0.0
    assert backend.positions(0) == (-1, -1)


@pytest.mark.long
def test_an_answer_goes_on_without_a_draft_model_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = demo().new_draft_model(config(str(DRAFT_MODEL)))
    decode, calls = failing._context.decode_runs, itertools.count()

    def fails_later(runs: Iterable[Run]) -> NDArray[np.float32]:
        if next(calls) < 30:
            return decode(runs)
        raise DecodeError("out of memory")

    monkeypatch.setattr(failing._context, "decode_runs", fails_later)
    world = served(OFF)
    world.draft_by(drafting_by(failing))
    names = "ab"
    wanted = [question(text, name) for text, name in zip(QUESTIONS, names, strict=False)]
    world.run(*wanted)
    world.check_cells()
    assert world.accepted
    assert world.draft_model_errors == ["out of memory"]
    for one, name in zip(wanted, names, strict=True):
        assert world.tokens[name] == sure_answer(one)


@pytest.mark.long
def test_more_sequences_than_the_draft_model_has_room_for_answer_all_the_same() -> None:
    made = demo().new_draft_model(config(str(DRAFT_MODEL)))
    made._free = made._free[:2]
    world = served(OFF)
    world.draft_by(drafting_by(made))
    names = "abcd"
    wanted = [question(text, name) for text, name in zip(QUESTIONS, names, strict=True)]
    world.run(*wanted)
    assert world.accepted
    for one, name in zip(wanted, names, strict=True):
        assert world.tokens[name] == sure_answer(one)
    assert (made._places, len(made._free)) == ({}, 2)


@pytest.mark.long
def test_sequences_that_share_a_prompt_of_the_model_draft_only_as_the_draft_model_has_cells() -> None:
    """The model has the shared prompt once, the draft model has it for each."""
    small = DraftModel(
        str(DRAFT_MODEL),
        demo().vocab,
        sequences=8,
        cells=256,
        batch_tokens=512,
        threads=1,
        gpu_layers=0,
        flash_attention=True,
    )
    asking = [sequence(range(5, 35), name) for name in "abcdefgh"]
    assert lengths(drafts_of(small, *asking)) == [8, 8, 8, 8, 0, 0, 0, 0]
    for one in asking[:2]:
        small.forget(one)
    assert lengths(drafts_of(small, *asking[2:])) == [8, 8, 8, 8, 0, 0]


def sequence(prompt: Iterable[int], name: str = "a") -> Sequence:
    """A request whose draft model has seen nothing of it."""
    wanted = batch_item(name, prompt=list(prompt), max_tokens=60)
    return sequence_of(wanted, arrival=0, now_s=0.0, unix_s=0.0, pieces=demo().vocab)


def drafts_of(
    model: DraftModel, *asking: Sequence, n: int = 8, within_s: float = math.inf
) -> list[list[int] | None]:
    """What the model drafts, however unsure it is; None where it is not ready."""
    course = Course([1.0] * 6, 1.0, least=0.0, draft=0.0)
    drafts = model.draft([Wanted(one, n, course) for one in asking], within_s)
    return [None if draft is None else draft.tokens[: draft.n_worth] for draft in drafts]


def lengths(drafts: list[list[int] | None]) -> list[int | None]:
    """How many tokens each draft has."""
    return [None if draft is None else len(draft) for draft in drafts]


@pytest.mark.long
def test_a_long_prompt_is_computed_in_as_many_parts_as_steps_have_time_for() -> None:
    model = demo().new_draft_model(config(str(DRAFT_MODEL)))
    # In steps of fewer than 64 rows, so with the same bits.
    prompts = [[(7 * n) % 900 + 5 for n in range(size)] for size in (34, 24)]
    at_once = drafts_of(model, *map(sequence, prompts), n=5)
    assert lengths(at_once) == [5, 5]
    long, short = (sequence(prompt) for prompt in prompts)
    ready: list[list[int] | None] = [None, None]
    calls = 0
    while None in ready:
        ready = drafts_of(model, long, short, n=5, within_s=0.0)
        calls += 1
    assert 3 <= calls <= 5, "sixteen tokens a step"
    assert ready == at_once


@pytest.mark.long
def test_a_draft_ends_before_the_end_of_the_answer() -> None:
    model = demo().new_draft_model(config(str(DRAFT_MODEL)))
    whole = drafts_of(model, sequence(range(5, 35)))[0]
    assert whole is not None
    end = next(token for token in whole if token != whole[0])
    wanted = sequence(range(5, 35))
    wanted.end_tokens = frozenset({end})
    assert drafts_of(model, wanted)[0] == whole[: whole.index(end)]


def test_a_draft_model_of_another_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "other.gguf")
    with pytest.raises(LoadError, match=r"INFERFLUX_WORKER_DRAFT_MODEL is .*other\.gguf: its vocabulary has"):
        demo().new_draft_model(config(str(path)))
    with pytest.raises(LoadError, match=r"INFERFLUX_WORKER_DRAFT_MODEL is .*missing\.gguf"):
        demo().new_draft_model(config(str(tmp_path / "missing.gguf")))


def test_a_draft_model_of_other_tokens_is_refused_by_the_first_of_them(tmp_path: Path) -> None:
    first = load(tiny_model().write(tmp_path / "first.gguf"), kv_cells=256)
    swapped = list(TOKENS)
    swapped[3], swapped[4] = swapped[4], swapped[3]
    other = tiny_model().having({"tokenizer.ggml.tokens": texts(swapped)})
    with pytest.raises(LoadError, match="its vocabulary is another one: token 3 is"):
        first.new_draft_model(config(str(other.write(tmp_path / "other.gguf"))))
