"""What left a worker's KV cache is found again, and no answer is another for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from harness.kv_states import IDENTITY, state_of
from harness.worker import batch_item, resume_item
from harness.worker_world import WorkerWorld, answer_to

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.engine.kv.envelope import Envelope, Identity
from inferflux.worker.engine.memory import saved
from inferflux.worker.engine.tiers.disk import Disk

PROMPT = [(7 * i) % 40 for i in range(60)]
MEMORY = 1 << 20


def world_of(
    *,
    host_bytes: int = MEMORY,
    disk: Disk | None = None,
    slots: int = 1,
    has_prefix_cache: bool = False,
    disk_prompt_tokens: int = 0,
) -> WorkerWorld:
    """A worker whose cache has room for one sequence of each slot, and ids for cached prefixes."""
    return WorkerWorld(
        slots=slots,
        sequences=slots + 4 * has_prefix_cache,
        has_prefix_cache=has_prefix_cache,
        cells=120 * slots,
        host_bytes=host_bytes,
        disk=disk,
        disk_bytes=MEMORY if disk else 0,
        disk_prompt_tokens=disk_prompt_tokens,
    )


def item(request_id: str, *, prompt: list[int], slot: int = 0, scope: str = "") -> worker_pb2.BatchItem:
    made = batch_item(request_id, model="m", prompt=prompt, max_tokens=10, slot=slot)
    made.request.cache_scope = scope
    return made


def found_of(world: WorkerWorld, request_id: str) -> tuple[int, generation_pb2.CacheTier.ValueType]:
    """(prompt tokens that were not computed, where they were), as both its first and its last chunk say."""
    chunks = world.chunks(request_id)
    (usage,) = [chunk.finished.usage for chunk in chunks if chunk.HasField("finished")]
    (started,) = [chunk.started for chunk in chunks if chunk.HasField("started")]
    found = usage.cached_prompt_tokens, usage.cached_prompt_tier
    assert found == (started.cached_prompt_tokens, started.cached_prompt_tier)
    return found


def preempt(world: WorkerWorld, request_id: str, *items: worker_pb2.BatchItem) -> None:
    run = world.runs[request_id]
    wanted = worker_pb2.Deschedule(tenant="t", request_id=request_id, epoch=1, run=run)
    assert not world.submit(*items, deschedule=(wanted,)).refused
    world.settle()


def resume(world: WorkerWorld, request_id: str) -> None:
    made = resume_item(request_id)
    made.request.model = "m"
    world.runs[request_id] += 1
    made.run = world.runs[request_id]
    assert not world.submit(made, phase=worker_pb2.PHASE_DECODE).refused


def run_out(world: WorkerWorld) -> int:
    """Let everything that runs end; returns the tokens that were prefilled."""
    prefilled = 0
    for _ in range(500):
        if not world.table.has_running:
            return prefilled
        time.sleep(world.engine.idle_s() or 0)  # as the engine process does while a file is read
        world.settle()
        prefilled += world.model.stats.prefill_tokens
    raise AssertionError("something never ended")


def leave_behind(world: WorkerWorld, request_id: str, *, scope: str = "") -> None:
    """Have a request computed, preempted, evicted, and cancelled."""
    world.submit(item(request_id, prompt=PROMPT, scope=scope))
    while not world.emitted(request_id):
        world.settle()
    preempt(world, request_id, item(f"{request_id}-other", prompt=[1, 2, 3]))
    run_out(world)
    world.cancel(request_id)
    world.settle()


def test_what_a_cancelled_request_left_in_host_memory_serves_the_next_one() -> None:
    world = world_of()
    leave_behind(world, "a")
    world.submit(item("b", prompt=[*PROMPT, 5, 6]))
    assert run_out(world) == 2
    assert world.emitted("b") == answer_to([*PROMPT, 5, 6], 10)
    world.submit(item("c", prompt=[*PROMPT[:40], 1]))
    assert run_out(world) == 1
    assert world.emitted("c") == answer_to([*PROMPT[:40], 1], 10)


def test_a_cached_prefix_that_leaves_the_kv_cache_serves_from_host_memory() -> None:
    world = world_of(has_prefix_cache=True)
    for name, first in (("a", 1), ("b", 2)):
        world.submit(item(name, prompt=[first, *PROMPT]))
        assert run_out(world) == 61
    world.submit(item("again", prompt=[1, *PROMPT]))
    assert run_out(world) == 1
    assert world.emitted("again") == answer_to([1, *PROMPT], 10)
    assert found_of(world, "again") == (60, generation_pb2.CACHE_TIER_HOST)
    world.submit(item("once-more", prompt=[1, *PROMPT]))
    assert run_out(world) == 1
    assert world.model.stats.host.hits == 0  # the KV cache has it
    assert found_of(world, "once-more") == (60, generation_pb2.CACHE_TIER_DEVICE)


def test_a_prefix_that_leaves_the_kv_cache_before_its_request_begins_is_restored() -> None:
    """The KV cache had it when the request came, so the tiers below it were not needed then."""
    world = world_of(has_prefix_cache=True, slots=2)
    other, long = [[(k * i) % 40 for i in range(110)] for k in (11, 13)]
    for name, prompt in (("a", [1, *PROMPT]), ("other", other)):
        world.submit(item(name, prompt=prompt))
        assert run_out(world) == len(prompt)
    world.submit(item("long", prompt=long), item("again", prompt=[1, *PROMPT], slot=1))
    assert run_out(world) == len(long) + 1
    assert world.emitted("long") == answer_to(long, 10)
    assert world.emitted("again") == answer_to([1, *PROMPT], 10)
    (chunk,) = [c for c in world.chunks("again") if c.HasField("finished")]
    assert chunk.finished.usage.cached_prompt_tokens == 60


def test_a_prefix_that_is_found_and_cannot_be_restored_is_not_told_as_cached() -> None:
    world = world_of()
    leave_behind(world, "a")
    world.cache.loses_states = True
    world.submit(item("b", prompt=[*PROMPT, 5, 6]))
    assert run_out(world) == 62
    assert world.emitted("b") == answer_to([*PROMPT, 5, 6], 10)
    assert found_of(world, "b") == (0, generation_pb2.CACHE_TIER_UNSPECIFIED)


def test_what_host_memory_has_is_reported_for_the_prefix_index() -> None:
    world = world_of(has_prefix_cache=True)
    reported: dict[int, engine_pb2.CachedPrefix] = {}
    for name, first in (("a", 1), ("b", 2)):
        world.submit(item(name, prompt=[first, *PROMPT]))
        while world.table.has_running:
            world.step()
            reported.update((cached.entry, cached) for report in world.reports for cached in report.cached)
            while world.reports:
                world.take_report()
    (kept,) = [cached for cached in reported.values() if cached.tier == generation_pb2.CACHE_TIER_HOST]
    assert kept.entry >= 1 << 32
    assert np.frombuffer(kept.token_ids, "<i4")[:61].tolist() == [1, *PROMPT]
    assert kept.cache_scope == "tenant/t"


def test_a_cached_prefix_that_leaves_the_kv_cache_serves_from_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk, has_prefix_cache=True)
    for name, first in (("a", 1), ("b", 2), ("c", 3)):
        world.submit(item(name, prompt=[first, *PROMPT]))
        run_out(world)
    disk.flush()
    world.submit(item("again", prompt=[1, *PROMPT, 4]))
    assert run_out(world) == 1
    assert world.emitted("again") == answer_to([1, *PROMPT, 4], 10)
    world.engine.close()


def test_another_scope_computes_for_itself() -> None:
    world = world_of()
    leave_behind(world, "a", scope="one")
    world.submit(item("b", prompt=PROMPT, scope="two"))
    assert run_out(world) == len(PROMPT)
    assert world.emitted("b") == answer_to(PROMPT, 10)


def test_how_much_of_a_prompt_was_restored_is_reported() -> None:
    world = world_of()
    leave_behind(world, "a")
    world.submit(item("b", prompt=PROMPT))
    world.step()
    reported = [p.computed_tokens for report in world.reports for p in report.prefilled]
    assert reported[0] == len(PROMPT) - 1
    (stats,) = [report.stats for report in world.reports]
    assert (stats.host.hits, len(stats.host.restore_us), stats.swap_ins) == (1, 1, 0)
    found = (stats.prefix_queries, stats.prefix_hits, stats.prefix_partial_hits, stats.prefix_matched_tokens)
    assert found == (1, 1, 0, len(PROMPT) - 1)


def test_a_preempted_request_that_host_memory_has_no_room_for_goes_on_from_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk)
    world.submit(item("a", prompt=PROMPT))
    while not world.emitted("a"):
        world.settle()
    preempt(world, "a", item("b", prompt=[1, 2, 3]))
    run_out(world)
    disk.flush()
    resume(world, "a")
    assert run_out(world) <= 1
    assert world.emitted("a") == answer_to(PROMPT, 10)
    world.engine.close()


def test_a_new_engine_goes_on_with_the_files_of_the_last(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk)
    leave_behind(world, "a")
    disk.flush()
    world.engine.close()
    disk = Disk(tmp_path, IDENTITY)
    disk.flush()
    world = world_of(disk=disk)
    world.submit(item("b", prompt=[*PROMPT, 5]))
    assert run_out(world) == 1
    assert world.emitted("b") == answer_to([*PROMPT, 5], 10)
    world.engine.close()


def test_what_is_flushed_at_the_end_serves_the_next_worker(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(disk=disk, has_prefix_cache=True)
    for name, first in (("host", 1), ("device", 2)):
        world.submit(item(name, prompt=[first, *PROMPT]))
        run_out(world)
    assert world.model.stats.host.states == 1
    world.submit(item("under-way", prompt=[3, *PROMPT[:30]]))
    while not world.emitted("under-way"):
        world.settle()
    flushed = world.engine.flush(10.0).flushed
    assert flushed.states == 3
    assert flushed.bytes > 0
    world.engine.close()
    disk = Disk(tmp_path, IDENTITY)
    disk.flush()
    world = world_of(disk=disk)
    for first, prompt in ((1, PROMPT), (2, PROMPT), (3, PROMPT[:30])):
        world.submit(item(f"again-{first}", prompt=[first, *prompt]))
        assert run_out(world) == 1
        assert world.emitted(f"again-{first}") == answer_to([first, *prompt], 10)
    world.engine.close()


def test_a_flush_without_time_writes_nothing_and_frees_what_runs(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(disk=disk, has_prefix_cache=True)
    world.submit(item("a", prompt=PROMPT))
    world.settle()
    assert world.engine.flush(0.0).flushed.states == 0
    settle_disk(world)
    world.engine.close()
    assert not list(tmp_path.glob("*/*.kv"))


def test_a_prompt_that_is_kept_but_for_its_end_is_not_copied_again() -> None:
    world = world_of(has_prefix_cache=True)
    shared = [(7 * i) % 40 for i in range(95)]
    for round_, rest in enumerate(([1, 2], [3, 4], [5, 6])):
        for tenant in (11, 12):
            name = f"{tenant}-{round_}"
            world.submit(item(name, prompt=[tenant, *shared, *rest]))
            assert run_out(world) == (98 if round_ == 0 else 2)
            assert world.emitted(name) == answer_to([tenant, *shared, *rest], 10)
    assert world.model.stats.host.states == 2


def have_copies_take(world: WorkerWorld, seconds: float) -> None:
    """Have a copy of `PROMPT` out of the KV cache count as taking this long, and computing it as longer."""
    rates = world.engine._tiers.rates
    rates.copy_out.observe(len(PROMPT), seconds)
    rates.prefill.seconds_per_unit = 10.0


def test_of_a_prefix_that_takes_too_long_to_copy_the_first_part_is_kept() -> None:
    world = world_of(has_prefix_cache=True)
    world.submit(item("a", prompt=[1, *PROMPT]))
    run_out(world)
    have_copies_take(world, 0.5)  # a step may take 0.2 s
    world.submit(item("b", prompt=[2, *PROMPT]))
    run_out(world)
    world.submit(item("again", prompt=[1, *PROMPT]))
    assert 20 < run_out(world) < 45
    assert world.emitted("again") == answer_to([1, *PROMPT], 10)


def test_a_preempted_request_that_takes_too_long_to_copy_computes_the_rest_again() -> None:
    world = world_of()
    world.submit(item("a", prompt=PROMPT))
    while not world.emitted("a"):
        world.settle()
    have_copies_take(world, 0.4)
    preempt(world, "a", item("b", prompt=[1] * 100))
    (resident,) = [r for r in world.status().residents if r.request_id == "a"]
    assert 25 < resident.computed_tokens < 40
    run_out(world)
    resume(world, "a")
    assert 25 < run_out(world) < 40
    assert world.emitted("a") == answer_to(PROMPT, 10)


@pytest.fixture
def slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Disk, threading.Event]:
    """A disk that has a state of `PROMPT`, and whose reads wait for the event."""
    monkeypatch.setattr(saved, "_SHORTEST_READ_S", 5.0)  # this machine may stand still for some time
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk)
    leave_behind(world, "before")
    disk.flush()
    world.engine.close()
    disk = Disk(tmp_path, IDENTITY)
    disk.flush()
    go_on = threading.Event()
    read = disk._folder.read

    def slow(name: str, identity: Identity) -> Envelope:
        go_on.wait()
        return read(name, identity)

    disk._folder.read = slow  # type: ignore[method-assign]
    return disk, go_on


def test_others_go_on_while_a_file_is_read(slow_disk: tuple[Disk, threading.Event]) -> None:
    disk, go_on = slow_disk
    world = world_of(disk=disk, slots=2)
    world.submit(item("waits", prompt=[*PROMPT, 5]), item("other", prompt=[1, 2, 3], slot=1))
    while len(world.emitted("other")) < 10:
        world.settle()
    assert world.emitted("other") == answer_to([1, 2, 3], 10)
    assert world.emitted("waits") == []
    assert 0 < (world.engine.idle_s() or 0) < 0.1
    world.settle()
    go_on.set()
    assert run_out(world) == 1
    assert world.emitted("waits") == answer_to([*PROMPT, 5], 10)
    world.engine.close()


def test_a_read_that_takes_too_long_is_abandoned(slow_disk: tuple[Disk, threading.Event]) -> None:
    disk, go_on = slow_disk
    world = world_of(disk=disk)
    world.submit(item("a", prompt=[*PROMPT, 5]))
    world.settle()
    assert world.emitted("a") == []
    world.ahead_s += 10
    assert run_out(world) == len(PROMPT) + 1
    assert world.emitted("a") == answer_to([*PROMPT, 5], 10)
    world.submit(item("b", prompt=[*PROMPT, 6]))  # the disk is not asked meanwhile
    assert run_out(world) == len(PROMPT) + 1
    go_on.set()
    disk._reader.submit(lambda: None).result()
    world.settle()
    world.submit(item("c", prompt=[*PROMPT, 7]))
    assert run_out(world) == 1
    assert world.emitted("c") == answer_to([*PROMPT, 7], 10)
    world.engine.close()


def test_a_request_that_is_cancelled_while_its_file_is_read_is_gone(
    slow_disk: tuple[Disk, threading.Event],
) -> None:
    disk, go_on = slow_disk
    world = world_of(disk=disk)
    world.submit(item("a", prompt=[*PROMPT, 5]))
    world.settle()
    world.cancel("a")
    world.settle()
    go_on.set()
    world.submit(item("b", prompt=[*PROMPT, 6]))
    run_out(world)
    assert world.emitted("b") == answer_to([*PROMPT, 6], 10)
    status = world.status()
    assert (status.kv_cells_used, len(status.residents)) == (0, 0)
    assert status.state == scheduler_pb2.WORKER_STATE_READY
    world.engine.close()


def test_a_full_kv_cache_beside_a_read_stops_nothing(slow_disk: tuple[Disk, threading.Event]) -> None:
    disk, go_on = slow_disk
    world = world_of(disk=disk, slots=2)
    world.submit(item("waits", prompt=[*PROMPT, 5]), item("large", prompt=[3] * 115, slot=1))
    while len(world.emitted("large")) < 3:
        world.settle()
    go_on.set()
    run_out(world)
    assert world.emitted("waits") == answer_to([*PROMPT, 5], 10)
    assert world.emitted("large") == answer_to([3] * 115, 10)
    world.engine.close()


CLEAR = scheduler_pb2.ClearCache(prefixes=True, tiers=True)


def cleared(world: WorkerWorld, clear: scheduler_pb2.ClearCache = CLEAR) -> scheduler_pb2.CacheCleared:
    """What the engine answers when it is told to clear its cache."""
    world.engine.clear_cache(engine_pb2.EngineClearCache(id=3, clear=clear))
    world.step()
    (answer,) = world.reports[-1].cleared
    assert answer.id == 3
    world.settle()
    return answer.cleared


def test_clearing_takes_what_no_request_holds_and_leaves_what_runs_waits_or_is_shared() -> None:
    world = world_of(slots=2, has_prefix_cache=True)
    for name, prompt in (("ended", PROMPT), ("other", PROMPT[::-1])):
        world.submit(item(name, prompt=prompt))
        run_out(world)
    world.submit(item("runs", prompt=[*PROMPT, 5]))  # shares the cells of the first that ended
    world.settle()
    before = world.status()
    assert before.kv_cells_cached > 0
    freed = cleared(world)
    after = world.status()
    assert freed.cells == before.kv_cells_cached
    assert (freed.sequences, after.kv_cells_cached, after.cached_sequences) == (2, 0, 0)
    assert {entry.token_ids for entry in world.cached.entries.values()} == {
        np.array([*PROMPT, 5], "<i4").tobytes()
    }
    run_out(world)
    assert world.emitted("runs") == answer_to([*PROMPT, 5], 10)


def test_what_is_cleared_is_computed_again() -> None:
    world = world_of(has_prefix_cache=True)
    world.submit(item("a", prompt=[*PROMPT, 5]))
    run_out(world)
    assert cleared(world).cells == len(PROMPT) + 10
    world.submit(item("b", prompt=[*PROMPT, 5]))
    assert run_out(world) == len(PROMPT) + 1
    assert world.emitted("b") == answer_to([*PROMPT, 5], 10)
    assert (cleared(world).cells, cleared(world).cells) == (len(PROMPT) + 10, 0)


def test_a_preempted_request_keeps_its_state_in_host_memory_when_all_is_cleared() -> None:
    world = world_of(has_prefix_cache=True)
    world.submit(item("waits", prompt=[*PROMPT, 5]))
    world.settle()
    preempt(world, "waits", item("large", prompt=[3] * 100))
    while not (held := world.status().swap_bytes_used):
        assert world.table.has_running
        world.settle()
    assert cleared(world).host_bytes == 0
    assert world.status().swap_bytes_used == held
    run_out(world)
    resume(world, "waits")
    run_out(world)
    assert world.emitted("waits") == answer_to([*PROMPT, 5], 10)


def test_one_tenants_prefixes_are_cleared_alone() -> None:
    world = world_of(has_prefix_cache=True, slots=2)
    world.submit(item("own", prompt=PROMPT))
    run_out(world)
    world.submit(item("shared", prompt=PROMPT[::-1], scope="shop"))
    run_out(world)
    clear = scheduler_pb2.ClearCache(prefixes=True, cache_scope="tenant/t")
    assert cleared(world, clear).sequences == 1
    assert [entry.cache_scope for entry in world.cached.entries.values()] == ["scope/shop"]
    assert cleared(world, scheduler_pb2.ClearCache(tiers=True)) == scheduler_pb2.CacheCleared()
    assert world.status().cached_sequences == 1


def test_all_that_is_cached_is_reported_again_when_that_is_asked_for() -> None:
    world = world_of(has_prefix_cache=True, slots=2)
    for i in range(3):
        world.submit(item(f"r{i}", prompt=[i, *PROMPT[:30]]))
        run_out(world)
    told = dict(world.cached.entries)
    assert told
    world.cached.clear()
    world.model.report_cache()
    while world.engine.idle_s() == 0 or not world.cached.entries:
        world.settle()
    assert world.cached.entries == told


def test_an_idle_engine_tells_what_it_finds_on_its_disk(tmp_path: Path) -> None:
    """More than goes into one report."""
    disk = Disk(tmp_path, IDENTITY)
    for i in range(40):
        disk.write(state_of([i % 40, i // 40, *PROMPT]))
    disk.flush()
    disk.close()
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(disk=disk, has_prefix_cache=True)
    settle_disk(world)
    assert len(world.cached.entries) == 40
    assert {entry.tier for entry in world.cached.entries.values()} == {generation_pb2.CACHE_TIER_DISK}
    world.engine.close()


def retried(request_id: str, prompt: list[int], generated: list[int]) -> worker_pb2.BatchItem:
    made = item(request_id, prompt=prompt)
    made.request.epoch, made.seeks_state = 2, True
    made.request.generated_token_ids.extend(generated)
    return made


def test_a_worker_goes_on_with_what_a_dead_one_had_put_on_disk(tmp_path: Path) -> None:
    """Prompt and generated tokens are looked up; what is not of the request stays where it is."""
    dead_disk = Disk(tmp_path, IDENTITY)
    dead = world_of(host_bytes=0, disk=dead_disk, has_prefix_cache=True, disk_prompt_tokens=32)
    dead.submit(item("lost", prompt=PROMPT))
    while len(dead.emitted("lost")) < 3:
        dead.settle()
    other = PROMPT[::-1]
    dead_disk.write(state_of(other, scope="tenant/t"))
    dead_disk.flush()
    generated = dead.emitted("lost")
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk, has_prefix_cache=True)
    settle_disk(world)
    dead.engine.close()  # and its lock is free, as after a kill
    world.submit(retried("lost", PROMPT, generated))
    assert run_out(world) == len(generated)
    assert world.emitted("lost") == answer_to(PROMPT, 10)[len(generated) :]
    assert [path.parent.name for path in sorted(tmp_path.glob("*/*.kv"))] == ["0", "1"]
    world.engine.close()


def test_what_requests_have_computed_outlives_their_worker(tmp_path: Path) -> None:
    """Of one that runs, and of one whose state is in host memory."""
    dead = world_of(disk=Disk(tmp_path, IDENTITY))
    prompts = {"waits": PROMPT, "runs": PROMPT[::-1]}
    dead.submit(item("waits", prompt=prompts["waits"]))
    while not dead.emitted("waits"):
        dead.settle()
    preempt(dead, "waits", item("runs", prompt=prompts["runs"]))
    while len(dead.emitted("runs")) < 3:
        dead.settle()
    dead.engine.hand_over_all(10.0)
    dead.engine.close()
    world = world_of(host_bytes=0, disk=Disk(tmp_path, IDENTITY), has_prefix_cache=True)
    settle_disk(world)
    for request_id, prompt in prompts.items():
        generated = dead.emitted(request_id)
        world.submit(retried(request_id, prompt, generated))
        assert run_out(world) == 1
        assert world.emitted(request_id) == answer_to(prompt, 10)[len(generated) :]
    world.engine.close()


@pytest.mark.parametrize("has_disk", [False, True])
def test_without_a_disk_or_time_nothing_outlives_a_worker(tmp_path: Path, has_disk: bool) -> None:
    world = world_of(disk=Disk(tmp_path, IDENTITY) if has_disk else None)
    world.submit(item("a", prompt=PROMPT))
    while not world.emitted("a"):
        world.settle()
    world.engine.hand_over_all(0.0 if has_disk else 10.0)
    world.engine.close()
    assert not list(tmp_path.glob("*/*.kv"))


def test_what_a_living_worker_has_on_disk_is_left_to_it(tmp_path: Path) -> None:
    living_disk = Disk(tmp_path, IDENTITY)
    living = world_of(host_bytes=0, disk=living_disk, has_prefix_cache=True, disk_prompt_tokens=32)
    living.submit(item("a", prompt=PROMPT))
    run_out(living)
    living_disk.flush()
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk, has_prefix_cache=True)
    settle_disk(world)
    world.submit(retried("a", PROMPT, []))
    assert run_out(world) == len(PROMPT)
    assert world.emitted("a") == answer_to(PROMPT, 10)
    assert [path.parent.name for path in tmp_path.glob("*/*.kv")] == ["0"]
    living.engine.close()
    world.engine.close()


def test_a_worker_that_is_dying_still_is_waited_for(tmp_path: Path) -> None:
    """The kernel keeps a killed process's lock until it has freed its memory."""
    dying = Disk(tmp_path, IDENTITY)
    dying.write(state_of(PROMPT, scope="tenant/t"))
    dying.flush()
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk, has_prefix_cache=True)
    settle_disk(world)
    world.submit(retried("a", PROMPT, []))
    world.settle()
    assert world.emitted("a") == []
    dying.close()
    assert run_out(world) == 1
    assert len(world.emitted("a")) == 10
    world.engine.close()


def test_a_request_that_was_only_moved_is_not_searched_for(tmp_path: Path) -> None:
    dead = Disk(tmp_path, IDENTITY)
    dead.write(state_of(PROMPT, scope="tenant/t"))
    dead.flush()
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(host_bytes=0, disk=disk, has_prefix_cache=True)
    settle_disk(world)
    dead.close()
    moved = retried("a", PROMPT, [])
    moved.seeks_state = False
    world.submit(moved)
    assert run_out(world) == len(PROMPT)
    world.engine.close()


def test_a_search_that_takes_too_long_is_not_waited_for(slow_disk: tuple[Disk, threading.Event]) -> None:
    disk, go_on = slow_disk
    world = world_of(disk=disk)
    blocked = threading.Event()
    disk._searcher.submit(blocked.wait)
    world.submit(retried("a", [*PROMPT[::-1], 5], []))
    world.settle()
    assert world.emitted("a") == []
    world.ahead_s += 1
    assert run_out(world) == len(PROMPT) + 1
    blocked.set()
    go_on.set()
    world.engine.close()


def test_prompts_are_put_on_disk_from_the_length_that_is_asked_for(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    world = world_of(disk=disk, has_prefix_cache=True, disk_prompt_tokens=50)
    settle_disk(world)
    for request_id, prompt in (("long", PROMPT), ("short", [3] * 40), ("again", [*PROMPT, 5])):
        world.submit(item(request_id, prompt=prompt))
        run_out(world)
    disk.flush()
    assert len(list(tmp_path.glob("0/*.kv"))) == 1
    world.engine.close()


def test_what_is_found_of_retried_requests_is_counted() -> None:
    world = world_of(has_prefix_cache=True)
    world.submit(item("first", prompt=PROMPT))
    run_out(world)
    totals = [0, 0]
    world.submit(retried("lost", [*PROMPT[:40], 1, 2], answer_to([*PROMPT[:40], 1, 2], 10)[:2]))
    while world.table.has_running:
        world.settle()
        totals[0] += world.model.stats.retried_tokens
        totals[1] += world.model.stats.retried_found_tokens
    assert totals == [44, 40]


def settle_disk(world: WorkerWorld) -> None:
    """Have all files found that were there."""
    while (wait_s := world.engine.idle_s()) is not None:
        time.sleep(wait_s)
        world.settle()


def test_a_request_whose_state_leaves_host_memory_is_computed_again() -> None:
    world = world_of()
    world.submit(item("a", prompt=PROMPT))
    while not world.emitted("a"):
        world.settle()
    preempt(world, "a", item("b", prompt=[1, 2, 3]))
    run_out(world)
    held = world.model.stats.host.bytes
    assert held > 0
    for n_bytes, kept in ((held, held), (held - 1, 0), (MEMORY, 0)):
        world.model.limit_host(n_bytes)
        assert world.model.host_limit.most >= n_bytes
        world.settle()
        assert (world.model.host_limit.most, world.model.stats.host.bytes) == (n_bytes, kept)
    resume(world, "a")
    assert run_out(world) > len(PROMPT)
    assert world.emitted("a") == answer_to(PROMPT, 10)


def test_a_cached_prefix_that_leaves_host_memory_is_forgotten() -> None:
    world = world_of()
    leave_behind(world, "a")
    world.model.limit_host(1)
    world.settle()
    assert world.status().swap_bytes == 1
    world.submit(item("b", prompt=[*PROMPT, 5, 6]))
    assert run_out(world) == len(PROMPT) + 2
    assert world.emitted("b") == answer_to([*PROMPT, 5, 6], 10)
