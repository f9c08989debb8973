"""Drafts in an engine: they come out as if each token had a step of its own, and leave nothing behind."""

from __future__ import annotations

import random

import numpy as np
from harness.sequences import new_sequence
from harness.worker import batch_item, resume_item
from harness.worker_world import EagerBudget, WorkerWorld, repetitive

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.planner import ScheduledTokens, plan_step
from inferflux.worker.engine.plan.sequence import Phase, Sequence
from inferflux.worker.engine.step.drafting import Drafting
from inferflux.worker.engine.step.verification import drafted_tokens

NGRAM, OFF = generation_pb2.SPECULATION_NGRAM, generation_pb2.SPECULATION_OFF
UNSET = generation_pb2.SPECULATION_UNSPECIFIED
PROMPT = [1, 2, 0, 1, 1, 2, 0]


def world_of(
    speculation: generation_pb2.Speculation.ValueType = NGRAM,
    *,
    cells: int = 200,
    sharing: PrefixSharing | None = None,
) -> WorkerWorld:
    given = {} if sharing is None else {"sharing": sharing}
    return WorkerWorld(
        slots=3,
        sequences=5,
        cells=cells,
        host_bytes=0,
        next_token=repetitive,
        speculation=speculation,
        **given,  # type: ignore[arg-type]
    )


def item(
    request_id: str = "a", *, slot: int = 0, max_tokens: int = 60, budget: int = 0
) -> worker_pb2.BatchItem:
    return batch_item(
        request_id, model="m", slot=slot, prompt=PROMPT, max_tokens=max_tokens, token_budget=budget
    )


def expected(max_tokens: int) -> list[int]:
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + max_tokens:
        tokens.append(repetitive(tokens))
    return tokens[len(PROMPT) :]


def run_out(world: WorkerWorld) -> list[engine_pb2.StepStats]:
    """Let everything that runs end; returns what each step did."""
    steps: list[engine_pb2.StepStats] = []
    for _ in range(300):
        if not world.table.has_running:
            return steps
        world.step()
        steps.append(world.reports[-1].stats)
        while world.reports:
            world.take_report()
    raise AssertionError("a sequence never ended")


def tokens_of(chunks: list[tokens_pb2.TokenChunk]) -> list[int]:
    tokens: list[int] = []
    for chunk in chunks:
        assert chunk.offset == len(tokens)
        tokens += chunk.token_ids
    return tokens


def total(steps: list[engine_pb2.StepStats]) -> tuple[int, int]:
    """(tokens drafted, tokens accepted)."""
    return sum(s.draft_tokens for s in steps), sum(sum(s.accepted_draft_tokens) for s in steps)


def plan_with_drafts(drafting: Drafting, sequence: Sequence) -> ScheduledTokens:
    """The sequence's part of a step."""
    plan = plan_step([sequence], [], 0)
    drafting.extend(plan, 1000)
    return plan.decoding[0]


def decoding(tokens: list[int], *, room: int = 200) -> Sequence:
    """A sequence that has these tokens as its prompt and is computed but for the last."""
    made = new_sequence(0, np.array(tokens + [0] * room, np.int32), prompt_tokens=len(tokens))
    made.max_tokens, made.position, made.phase = room, len(tokens) - 1, Phase.DECODE
    return made


def test_nothing_is_drafted_from_the_end_of_an_answer_on() -> None:
    drafting = Drafting(EagerBudget(), default=NGRAM, most_rows=63)  # type: ignore[arg-type]
    sequence = decoding([5, 1, 2, 3, 9, 7, 5, 1])
    sequence.end_tokens = frozenset({9})
    drafting.begin(sequence, scheduler_pb2.InferenceRequest())
    part = plan_with_drafts(drafting, sequence)
    assert drafted_tokens(part) == [2, 3]
    sequence.append(2)
    sequence.append(3)
    part = plan_with_drafts(drafting, sequence)
    assert (part.n, part.n_logits, part.n_drafted) == (1, 1, 0)


def learning() -> Drafting:
    """Drafts for steps in which four rows more take twice the time."""
    budget = StepBudget(2048, 5.0, 0.2)
    budget.know_rows({1: 0.004, 63: 0.066})
    return Drafting(budget, default=NGRAM, most_rows=63)


def test_drafts_begin_once_what_is_followed_comes_and_end_when_it_does_not() -> None:
    rng = random.Random(1)
    drafting = learning()
    text = rng.sample(range(100), 60)
    sequence = decoding(text)
    drafting.begin(sequence, scheduler_pb2.InferenceRequest())
    drafted = []
    for token in [*text[:40], *(rng.randrange(100) for _ in range(80))]:
        drafted.append(plan_with_drafts(drafting, sequence).n_drafted)
        sequence.append(token)
    assert drafted[0] == 0
    assert all(drafted[8:40]), "the prompt is copied"
    assert sum(map(bool, drafted[60:])) <= 2, "nothing is"


def test_where_many_find_nothing_drafts_are_looked_for_again_some_steps_later() -> None:
    drafting = Drafting(EagerBudget(), default=NGRAM, most_rows=63)  # type: ignore[arg-type]
    sequences = [decoding(list(range(20))) for _ in range(16)]
    for sequence in sequences:
        drafting.begin(sequence, scheduler_pb2.InferenceRequest())
    drafted = []
    for _ in range(5):
        plan = plan_step(sequences, [], 0)
        drafting.extend(plan, 1000)
        drafted.append(plan.n_drafted > 0)
        for sequence in sequences:
            sequence.append(50)
    assert drafted == [False, False, False, True, True], "from the second 50 on there is one to draft"


def test_text_that_never_goes_on_as_before_is_not_drafted_for_new_requests_either() -> None:
    rng = random.Random(2)
    drafting = learning()
    for _ in range(3):
        sequence = decoding([rng.randrange(20) for _ in range(40)])
        drafting.begin(sequence, scheduler_pb2.InferenceRequest())
        drafted = []
        for _ in range(100):
            drafted.append(plan_with_drafts(drafting, sequence).n_drafted)
            sequence.append(rng.randrange(20))
    assert sum(map(bool, drafted)) <= 2


def test_drafts_give_the_same_tokens_in_fewer_steps() -> None:
    world = world_of()
    world.submit(item())
    steps = run_out(world)
    assert tokens_of(world.chunks("a")) == expected(60)
    drafted, accepted = total(steps)
    assert 0 < accepted < drafted, "both fates of a draft are to be seen"
    assert len(steps) == 60 - accepted
    assert sum(s.decode_tokens for s in steps) == 59


def test_what_was_drafted_is_told_at_the_end() -> None:
    world = world_of()
    world.submit(item())
    drafted, accepted = total(run_out(world))
    timings = world.chunks("a")[-1].finished.timings
    assert (timings.draft_n, timings.draft_n_accepted) == (drafted, accepted)


def test_the_text_of_several_tokens_is_theirs() -> None:
    world = world_of()
    world.submit(item())
    run_out(world)
    chunks = world.chunks("a")
    assert any(len(chunk.token_ids) > 1 for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == "".join(chr(65 + t) for t in expected(60))


def test_a_stop_string_within_a_draft_ends_the_answer_there() -> None:
    whole = "".join(chr(65 + t) for t in expected(60))
    stop = whole[30:36]
    wanted = item()
    wanted.request.params.stop.append(stop)
    world = world_of()
    world.submit(wanted)
    run_out(world)
    chunks = world.chunks("a")
    assert "".join(chunk.text for chunk in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finished.usage.completion_tokens == whole.index(stop) + len(stop)


def test_an_answer_ends_and_yields_at_the_token_where_it_should() -> None:
    world = world_of()
    world.submit(item(max_tokens=37, budget=20))
    run_out(world)
    assert tokens_of(world.chunks("a")) == expected(20)
    again = resume_item("a", slot=1)
    again.request.model, again.run = "m", 1
    world.submit(again, phase=worker_pb2.PHASE_DECODE)
    run_out(world)
    assert tokens_of(world.chunks("a")) == expected(37)


def test_a_request_chooses_for_itself() -> None:
    for set_to, asked, is_drafted in ((NGRAM, OFF, False), (OFF, NGRAM, True), (OFF, UNSET, False)):
        world = world_of(set_to)
        wanted = item()
        wanted.request.params.speculation = asked
        world.submit(wanted)
        drafted, _ = total(run_out(world))
        assert bool(drafted) is is_drafted
        assert tokens_of(world.chunks("a")) == expected(60)


def test_memory_of_which_no_tail_can_be_removed_gets_no_drafts() -> None:
    for kind in (PrefixSharing(Sharing.WINDOW, "a window", 5), PrefixSharing(Sharing.CHECKPOINTS, "a state")):
        world = world_of(sharing=kind)
        world.submit(item())
        assert total(run_out(world)) == (0, 0)
        assert tokens_of(world.chunks("a")) == expected(60)


def test_a_draft_takes_no_cell_of_others() -> None:
    world = world_of(cells=3 * len(PROMPT) + 60)
    for slot, name in enumerate("abc"):
        world.submit(item(name, slot=slot, max_tokens=20))
    run_out(world)
    evictions = [e for e in world.events() if e.HasField("request_yielded")]
    assert not evictions
    for name in "abc":
        assert tokens_of(world.chunks(name)) == expected(20)
