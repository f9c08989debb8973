"""A worker and its engine together: whatever is asked of them, in whatever order messages cross, nothing that
does not fit is computed, both agree in the end, and every request gives the tokens it gives alone."""

from __future__ import annotations

import asyncio
import itertools
import time

from harness.long_lists import long_lists
from harness.profiles import examples
from harness.worker import batch_item, resume_item
from harness.worker_world import NextToken, WorkerWorld, next_token, repetitive
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inferflux.common.contract.partitions import divide
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.kv.prefix_sharing import FULL, PrefixSharing, Sharing

RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED
PREEMPTED = scheduler_pb2.YIELD_REASON_PREEMPTED
MEMORY = scheduler_pb2.YIELD_REASON_MEMORY
SLOTS = 3
SEQUENCES = 5


def small(
    *,
    slots: int = SLOTS,
    sequences: int = SEQUENCES,
    cells: int = 100,
    host_bytes: int = 1 << 20,
    prefill_cells: int = 0,
    sharing: PrefixSharing = FULL,
    has_long_steps: bool = False,
    drafts: bool = False,
) -> WorkerWorld:
    """With drafts, of a model that repeats itself."""
    return WorkerWorld(
        slots=slots,
        sequences=sequences,
        cells=cells,
        host_bytes=host_bytes,
        prefill_cells=prefill_cells if sharing.is_divisible else 0,
        sharing=sharing,
        has_long_steps=has_long_steps and sharing.is_divisible,
        next_token=repetitive if drafts else next_token,
        speculation=generation_pb2.SPECULATION_NGRAM if drafts else generation_pb2.SPECULATION_OFF,
    )


def narrow(*, host_bytes: int = 1 << 20) -> WorkerWorld:
    """A worker whose cache has room for one sequence at a time."""
    return small(slots=1, sequences=1, host_bytes=host_bytes)


def item(
    request_id: str,
    *,
    slot: int = 0,
    prompt: int = 5,
    max_tokens: int = 10,
    urgency_key: float = 0.0,
    budget: int = 0,
    shared: int = 0,
) -> worker_pb2.BatchItem:
    """The first `shared` tokens are those of other requests."""
    own = [(7 * i + sum(request_id.encode())) % 40 for i in range(prompt - shared)]
    tokens = [(11 * i) % 40 for i in range(min(shared, prompt))] + own
    return batch_item(
        request_id,
        model="m",
        slot=slot,
        prompt=tokens,
        max_tokens=max_tokens,
        urgency_key=urgency_key,
        token_budget=budget,
    )


def again(
    request_id: str, *, slot: int = 0, epoch: int = 1, urgency_key: float = 0.0, budget: int = 0
) -> worker_pb2.BatchItem:
    made = resume_item(request_id, slot=slot, epoch=epoch, urgency_key=urgency_key, token_budget=budget)
    made.request.model = "m"
    return made


def preempt(world: WorkerWorld, request_id: str, *items: worker_pb2.BatchItem) -> worker_pb2.BatchAccepted:
    """End the latest run of a request, for others."""
    run = world.runs[request_id]
    wanted = worker_pb2.Deschedule(tenant="t", request_id=request_id, epoch=1, run=run)
    return world.submit(*items, deschedule=(wanted,))


def resume(world: WorkerWorld, *items: worker_pb2.BatchItem) -> worker_pb2.BatchAccepted:
    for one in items:
        world.runs[one.request.request_id] += 1
        one.run = world.runs[one.request.request_id]
    return world.submit(*items, phase=worker_pb2.PHASE_DECODE)


def expected(wanted: worker_pb2.BatchItem, following: NextToken = next_token) -> list[int]:
    tokens = list(wanted.request.prompt_token_ids)
    start = len(tokens)
    while len(tokens) < start + wanted.request.params.max_tokens:
        tokens.append(following(tokens))
    return tokens[start:]


def emitted(chunks: list[tokens_pb2.TokenChunk]) -> list[int]:
    """The tokens of a stream, which must be contiguous and end once."""
    tokens: list[int] = []
    for chunk in chunks:
        assert chunk.offset == len(tokens)
        tokens += chunk.token_ids
    assert sum(c.WhichOneof("event") in ("finished", "failed") for c in chunks) <= 1
    return tokens


def residences(world: WorkerWorld) -> dict[str, int]:
    return {r.request_id: r.residence for r in world.status().residents}


def yields(world: WorkerWorld) -> list[tuple[str, int, int, int]]:
    found = [e.request_yielded for e in world.events() if e.HasField("request_yielded")]
    return [(y.request_id, y.reason, y.residence, y.generated_tokens) for y in found]


def run_out(world: WorkerWorld) -> None:
    """Let everything that runs end."""
    for _ in range(500):
        if not world.table.has_running:
            return
        world.settle()
    raise AssertionError("a sequence never ended")


def test_a_request_without_computed_tokens_keeps_no_sequence_id() -> None:
    world = small(sequences=3)
    for slot, name in enumerate(("a", "b", "c")):
        world.submit(item(name, slot=slot, prompt=60, urgency_key=slot))
    world.settle()
    preempt(world, "c")
    world.settle()
    assert residences(world) == {"a": RUNNING, "b": RUNNING, "c": SWAPPED}
    assert world.submit(item("d", slot=2, urgency_key=-1)).accepted_request_ids == ["d"]
    world.settle()
    assert world.chunks("d")


def test_a_parked_request_whose_sequence_id_is_needed_goes_on_from_host_memory() -> None:
    world = narrow()
    first, second = item("a"), item("b")
    world.submit(first)
    world.settle()
    preempt(world, "a", second)
    world.settle()
    assert yields(world) == [("a", PREEMPTED, PARKED, 1), ("a", MEMORY, SWAPPED, 1)]
    assert world.status().swap_bytes_used > 5
    run_out(world)
    resume(world, again("a"))
    run_out(world)
    assert emitted(world.chunks("a")) == expected(first)
    assert emitted(world.chunks("b")) == expected(second)
    assert world.status().swap_bytes_used == 0


def test_without_host_memory_it_is_computed_again() -> None:
    world = narrow(host_bytes=0)
    wanted = item("a")
    world.submit(wanted)
    world.settle()
    preempt(world, "a", item("b"))
    world.settle()
    assert world.status().residents[0].computed_tokens == 0
    run_out(world)
    resume(world, again("a"))
    run_out(world)
    assert emitted(world.chunks("a")) == expected(wanted)


def test_a_state_that_cannot_be_restored_is_computed_again() -> None:
    world = narrow()
    wanted = item("a")
    world.submit(wanted)
    world.settle()
    preempt(world, "a", item("b"))
    world.settle()
    assert world.status().swap_bytes_used > 0
    world.cache.loses_states = True
    run_out(world)
    resume(world, again("a"))
    run_out(world)
    assert emitted(world.chunks("a")) == expected(wanted)


def test_when_cells_run_out_the_least_urgent_is_swapped_and_reported() -> None:
    world = small(cells=60)
    first, second = (
        item("a", slot=0, prompt=20, max_tokens=30),
        item("b", slot=1, prompt=20, max_tokens=30, urgency_key=1),
    )
    world.submit(first, second)
    for _ in range(400):
        world.settle()
        if yields(world):
            break
    [(name, reason, residence, _)] = yields(world)
    assert (name, reason, residence) == ("b", MEMORY, SWAPPED)
    assert resume(world, again("b", slot=1, urgency_key=1)).accepted_request_ids == ["b"]
    run_out(world)
    assert emitted(world.chunks("a")) == expected(first)
    assert emitted(world.chunks("b")) == expected(second)


def test_a_running_request_that_finds_no_room_is_descheduled() -> None:
    world = small(cells=60)
    world.submit(item("a", slot=0, prompt=30, max_tokens=30))
    world.settle()
    world.submit(item("b", slot=1, prompt=30, urgency_key=1))
    world.settle()
    assert residences(world) == {"a": RUNNING, "b": RUNNING}
    world.ahead_s = 2
    world.settle()
    assert residences(world) == {"a": RUNNING, "b": SWAPPED}
    assert yields(world) == [("b", MEMORY, SWAPPED, 0)]


def test_a_yield_names_its_run_so_that_a_later_one_runs_on() -> None:
    world = small()
    wanted = item("a")
    world.submit(wanted)
    world.settle()
    preempt(world, "a")
    world.step()
    resume(world, again("a"))
    world.settle()
    assert residences(world) == {"a": RUNNING}
    (told,) = [e.request_yielded for e in world.events()]
    assert (told.run, world.status().residents[0].run) == (0, 1)
    run_out(world)
    assert emitted(world.chunks("a")) == expected(wanted)


def test_parked_and_swapped_requests_can_be_cancelled() -> None:
    world = narrow()
    world.submit(item("a"))
    world.settle()
    preempt(world, "a", item("b"))
    world.settle()
    preempt(world, "b")
    world.settle()
    assert residences(world) == {"a": SWAPPED, "b": PARKED}
    world.cancel("a")
    world.cancel("b")
    world.settle()
    assert residences(world) == {}
    assert (world.status().kv_cells_used, world.status().swap_bytes_used) == (0, 0)
    for name in ("a", "b"):
        assert world.chunks(name)[-1].finished.reason
    assert world.cache.used == 0


def test_a_deadline_ends_a_parked_request_though_nothing_runs() -> None:
    world = small()
    wanted = item("a")
    wanted.request.deadline_unix_ms = int(time.time() * 1000) + 3_600_000
    world.submit(wanted)
    world.settle()
    preempt(world, "a")
    world.settle()
    world.ahead_s = 3_590
    wait_s = world.engine.idle_s()
    assert wait_s is not None
    assert 0 < wait_s <= 10
    world.ahead_s = 3_700
    assert world.engine.idle_s() == 0


def test_without_residents_the_engine_waits_for_commands_alone() -> None:
    world = small()
    assert world.engine.idle_s() is None
    world.submit(item("a"))
    world.settle()
    assert world.engine.idle_s() == 0


def test_a_higher_epoch_replaces_a_parked_request() -> None:
    world = small()
    world.submit(item("a"))
    world.settle()
    preempt(world, "a")
    world.settle()
    second = item("a", slot=1)
    second.request.epoch = 2
    world.submit(second)
    run_out(world)
    assert [t for c in world.chunks("a") if c.epoch == 2 for t in c.token_ids] == expected(second)
    assert world.cache.used == 0


def test_a_leader_of_its_model_gets_a_heartbeat_and_its_term_counts() -> None:
    world = small()
    own, others = sorted(divide(2), key=lambda partition: not partition.has("m"))
    world.notice(worker_pb2.LeaderNotice(term=3, partition=others.name))
    assert (world.heartbeats(), world.status().term) == (0, 0)
    world.notice(worker_pb2.LeaderNotice(term=3, partition=own.name))
    assert (world.heartbeats(), world.status().term) == (1, 3)
    world.notice(worker_pb2.LeaderNotice(term=2))
    assert (world.heartbeats(), world.status().term) == (1, 3)
    assert world.submit(item("a")).refused[0].reason == worker_pb2.REFUSAL_REASON_OLD_TERM


async def test_leaving_waits_for_what_runs_and_for_nothing_else() -> None:
    world = small()
    assert not world.submit(item("a", max_tokens=60), item("b", slot=1)).refused
    world.settle()
    preempt(world, "b")
    world.settle()
    leaving = asyncio.create_task(world.model.until_none_runs())
    await asyncio.sleep(0)
    world.settle()
    await asyncio.sleep(0)
    assert not leaving.done()
    drop = worker_pb2.DropRequest(tenant="t", request_id="a", epoch=1)
    world.command(worker_pb2.WorkerCommand(drop=drop))
    world.settle()
    await asyncio.wait_for(leaving, 5)
    assert residences(world) == {"b": PARKED}


def test_time_to_first_token_is_told_by_who_sampled_it() -> None:
    world = small()
    first, retried = item("a"), item("b", slot=1)
    retried.request.generated_token_ids.extend(expected(retried)[:3])
    world.submit(first, retried)
    run_out(world)
    times = {e.request_finished.request_id: e.request_finished.time_to_first_token_ms for e in world.events()}
    assert times["a"] > 0
    assert times["b"] == 0


_NAMES = [f"r{i}" for i in range(6)]
_SHARING = [FULL, PrefixSharing(Sharing.WINDOW, "a window", 5), PrefixSharing(Sharing.CHECKPOINTS, "a state")]
_ACTIONS = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(_NAMES),
        st.integers(0, SLOTS - 1),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    st.tuples(
        st.just("resume"),
        st.sampled_from(_NAMES),
        st.integers(0, SLOTS - 1),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    st.tuples(st.sampled_from(["preempt", "cancel"]), st.sampled_from(_NAMES)),
    st.tuples(st.just("lose"), st.integers(0, SEQUENCES - 1)),
    st.tuples(st.just("limit"), st.sampled_from([0, 700, 1 << 20])),
    st.sampled_from([("step",), ("report",), ("step",), ("report",), ("interrupt",)]),
)


def do(
    world: WorkerWorld, actions: list[tuple[object, ...]], items: dict[str, worker_pb2.BatchItem]
) -> set[str]:
    """Returns the requests that were cancelled."""
    cancelled: set[str] = set()
    for action in actions:
        match action:
            case ("submit", str(name), int(slot), int(urgency_key), int(budget)) if not world.chunks(name):
                made = items[name]
                made.slot, made.urgency_key, made.token_budget = slot, urgency_key, budget
                world.submit(made)
            case ("resume", str(name), int(slot), int(urgency_key), int(budget)):
                resume(world, again(name, slot=slot, urgency_key=urgency_key, budget=budget))
            case ("lose", int(seq_id)):
                world.lose(seq_id)
            case ("limit", int(n_bytes)):
                world.model.limit_host(n_bytes)
            case ("preempt", str(name)):
                preempt(world, name)
            case ("cancel", str(name)):
                world.cancel(name)
                cancelled.add(name)
            case ("interrupt",):
                world.cache.is_interrupted = True
            case ("step",):
                world.step()
            case ("report",):
                world.take_report()
    return cancelled


@given(
    long_lists(_ACTIONS, max_size=60),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=6, max_size=6),
    st.sampled_from([0, 1000, 1 << 20]),
    st.booleans(),
    st.sampled_from([0, 12, 50]),
    st.sampled_from([0, 17, 25]),
    st.sampled_from(_SHARING),
    st.booleans(),
    st.booleans(),
)
# Evicted while it decodes, and one token short of complete when it is recomputed in the prefill context.
@example(
    actions=[
        ("submit", "r0", 1, 0, 0),
        ("submit", "r4", 0, 0, 3),
        ("submit", "r0", 0, 0, 0),
        ("preempt", "r0"),
    ],
    sizes=[(1, 1), (1, 1), (1, 1), (1, 1), (30, 4), (1, 1)],
    host_bytes=0,
    loses_states=False,
    prefill_cells=50,
    shared=0,
    sharing=FULL,
    has_long_steps=False,
    drafts=True,
)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_asked_in_whatever_order(
    actions: list[tuple[object, ...]],
    sizes: list[tuple[int, int]],
    host_bytes: int,
    loses_states: bool,
    prefill_cells: int,
    shared: int,
    sharing: PrefixSharing,
    has_long_steps: bool,
    drafts: bool,
) -> None:
    world = small(
        cells=50,
        host_bytes=host_bytes,
        prefill_cells=prefill_cells,
        sharing=sharing,
        has_long_steps=has_long_steps,
        drafts=drafts,
    )
    world.cache.loses_states = loses_states
    items = {
        n: item(n, prompt=p, max_tokens=m, shared=shared) for n, (p, m) in zip(_NAMES, sizes, strict=True)
    }
    cancelled = do(world, actions, items)
    for slot in itertools.cycle(range(SLOTS)):
        run_out(world)
        left = [name for name, residence in residences(world).items() if residence != RUNNING]
        if not left:
            break
        assert resume(world, again(left[0], slot=slot)).accepted_request_ids == left[:1]
    world.settle()
    assert residences(world) == {}
    assert world.model.host_limit.most == world.model.host_limit.now
    status = world.status()
    assert world.cache.used == status.kv_cells_cached
    assert len(world.cache.by_seq_id) == status.cached_sequences
    assert world.cache.prefill == {}
    assert world.engine._memory.free_seq_ids == SEQUENCES
    assert (status.kv_cells_used, status.kv_cells_reserved, status.swap_bytes_used) == (0, 0, 0)
    assert world.model.cache_counts.hits <= world.model.cache_counts.queries
    ended = [e.request_finished.request_id for e in world.events() if e.HasField("request_finished")]
    assert len(ended) == len(set(ended))
    for name in ended:
        tokens = emitted(world.chunks(name))
        whole = expected(items[name], repetitive if drafts else next_token)
        assert tokens == whole or (name in cancelled and tokens == whole[: len(tokens)])


def test_streams_get_on_while_a_long_prompt_is_computed() -> None:
    world = small(prefill_cells=100)
    world.submit(item("stream", urgency_key=1.0, max_tokens=40))
    world.settle()
    world.submit(item("prompt", slot=1, prompt=70, max_tokens=2))
    steps: list[engine_pb2.StepStats] = []
    while not steps or not steps[-1].prefill_tokens or steps[-1].prefill_tokens == 32:
        world.step()
        steps.append(world.reports[-1].stats)
    assert [bool(step.decode_tokens) for step in steps[1:]] == [True, False] * (len(steps) // 2)


def test_a_step_for_which_none_is_evicted_is_the_others() -> None:
    world = small(cells=70, prefill_cells=70)
    world.submit(item("stream", urgency_key=1.0, prompt=30, max_tokens=20))
    for _ in range(9):
        world.settle()
    assert world.cache.used == 38
    urgent = item("urgent", slot=1, prompt=60, max_tokens=8)
    world.submit(urgent)
    world.settle()
    assert world.cache.used == 70  # not a cell for the stream, whose step it would be
    run_out(world)
    assert emitted(world.chunks("urgent")) == expected(urgent)
    assert residences(world) == {"stream": SWAPPED}


def test_a_prompt_whose_first_step_was_given_up_begins_with_what_others_computed_meanwhile() -> None:
    world = small(prefill_cells=100, has_long_steps=True)
    long = item("long", prompt=60, max_tokens=4, shared=20)
    short = item("short", slot=1, prompt=25, max_tokens=4, urgency_key=-1.0, shared=20)
    world.cache.is_interrupted = True
    world.submit(long)
    world.settle()
    assert not world.cache.is_interrupted, "the step was not a long one"
    world.submit(short)
    run_out(world)
    finished = {c.request_id: c.finished for c in world.chunks("long") if c.HasField("finished")}
    assert finished["long"].usage.cached_prompt_tokens == 20
    assert emitted(world.chunks("long")) == expected(long)
    assert emitted(world.chunks("short")) == expected(short)
    assert world.cache.prefill == {}


def test_a_prompt_that_begins_in_a_long_step_of_another_begins_with_what_is_cached() -> None:
    world = small(prefill_cells=100, has_long_steps=True)
    world.submit(item("first", prompt=30, shared=20, max_tokens=1))
    run_out(world)
    new = item("new", prompt=22, max_tokens=4, urgency_key=-1.0)
    warm = item("warm", slot=1, prompt=40, shared=20, max_tokens=4)
    world.submit(new, warm)
    run_out(world)
    finished = {c.request_id: c.finished for c in world.chunks("warm") if c.HasField("finished")}
    assert finished["warm"].usage.cached_prompt_tokens == 20
    assert emitted(world.chunks("new")) == expected(new)
    assert emitted(world.chunks("warm")) == expected(warm)


def test_a_prompt_whose_cells_are_taken_away_counts_as_one_hit() -> None:
    world = small(cells=100, host_bytes=0)
    first, second = item("first", prompt=20, max_tokens=2), item("second", prompt=40, shared=0, max_tokens=30)
    second.request.prompt_token_ids[:20] = first.request.prompt_token_ids
    world.submit(first)
    run_out(world)
    second.urgency_key = 1.0
    world.submit(second)
    for _ in range(3):
        world.settle()
    world.lose(world.engine.residents["t.second"].seq_id)
    run_out(world)
    assert emitted(world.chunks("second")) == expected(second)
    counts = world.model.cache_counts
    assert (counts.queries, counts.hits, counts.matched_tokens) == (2, 1, 20)
