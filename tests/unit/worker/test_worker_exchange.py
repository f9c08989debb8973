"""A request that goes from one worker of a machine to another takes what is computed of it along."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from harness.kv_states import IDENTITY, state_of
from harness.worker import batch_item
from harness.worker_world import WorkerWorld, answer_to

from inferflux.v1 import worker_pb2
from inferflux.worker.engine.tiers import claims
from inferflux.worker.engine.tiers.disk import Disk, DiskUnavailable

PROMPT = [(7 * i) % 40 for i in range(60)]
OTHER = replace(IDENTITY, model="n")
MEMORY = 1 << 20
ANSWER = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a fleet, in one that is for this user alone."""
    (tmp_path / "ifx_kv_0").mkdir(mode=0o700)
    return tmp_path / "ifx_kv_0" / "fleet"


def world_of(root: Path, *, slots: int = 2, n_bytes: int = MEMORY) -> WorkerWorld:
    """A worker without a disk tier, whose exchange lies below `root`."""
    return WorkerWorld(
        slots=slots,
        sequences=slots + 2,
        cells=150 * slots,
        host_bytes=MEMORY,
        disk=Disk(root, IDENTITY, is_tier=False),
        disk_bytes=n_bytes,
    )


def item(request_id: str, prompt: list[int], *, slot: int = 0) -> worker_pb2.BatchItem:
    return batch_item(request_id, model="m", prompt=prompt, max_tokens=ANSWER, slot=slot)


def taken_over(
    request_id: str, prompt: list[int], generated: list[int], *, slot: int = 0
) -> worker_pb2.BatchItem:
    """The request's next attempt, on another worker."""
    made = item(request_id, prompt, slot=slot)
    made.request.epoch, made.seeks_state = 2, True
    made.request.generated_token_ids.extend(generated)
    return made


def run_until(world: WorkerWorld, *request_ids: str, n: int) -> None:
    while any(len(world.emitted(request_id)) < n for request_id in request_ids):
        world.settle()


def begun(world: WorkerWorld, request_id: str) -> list[int]:
    """Have a request run for a while; returns what it has generated."""
    world.submit(item(request_id, PROMPT))
    run_until(world, request_id, n=4)
    return world.emitted(request_id)


def run_out(world: WorkerWorld) -> int:
    """Let everything that runs end; returns the tokens that were prefilled."""
    prefilled = 0
    for _ in range(500):
        if not world.table.has_running:
            return prefilled
        time.sleep(world.engine.idle_s() or 0)
        world.settle()
        prefilled += world.model.stats.prefill_tokens
    raise AssertionError("something never ended")


def drop(world: WorkerWorld, request_id: str, *, leaves_state: bool) -> None:
    command = worker_pb2.WorkerCommand()
    command.drop.tenant, command.drop.request_id, command.drop.epoch = "t", request_id, 1
    command.drop.leaves_state = leaves_state
    world.command(command)
    world.settle()


def settle_disk(world: WorkerWorld) -> None:
    """Let searches end, and files be removed."""
    tiers = world.engine._tiers
    while tiers.is_scanning:
        time.sleep(0.01)
        tiers.poll()
    tiers.poll()
    assert tiers._disk is not None
    tiers._disk.flush()


def files(root: Path) -> list[str]:
    """The folder of each state that lies below `root`."""
    return [path.parent.name for path in sorted(root.glob("*/*.kv"))]


def test_a_request_that_moves_is_not_computed_again(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    generated = begun(before, "a")
    drop(before, "a", leaves_state=True)
    assert before.status().residents == []
    after.submit(taken_over("a", PROMPT, generated))
    assert run_out(after) == 1
    assert after.emitted("a") == answer_to(PROMPT, ANSWER)[len(generated) :]
    assert files(root) == ["1"]  # it is in host memory, and its file the copy of it
    for world in (before, after):
        world.engine.close()
    assert files(root) == []


def test_the_state_may_come_after_the_request(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    generated = begun(before, "a")
    after.submit(taken_over("a", PROMPT, generated))
    after.settle()
    assert after.emitted("a") == []
    drop(before, "a", leaves_state=True)
    assert run_out(after) == 1
    assert after.emitted("a") == answer_to(PROMPT, ANSWER)[len(generated) :]
    for world in (before, after):
        world.engine.close()


def test_each_of_several_that_begin_alike_finds_its_own(root: Path) -> None:
    """One that is there first has the beginning of the other, which waits for more."""
    before, after = world_of(root), world_of(root)
    prompts = {"a": [*PROMPT[:32], *range(20)], "b": [*PROMPT[:32], *range(20, 40)]}
    for slot, (request_id, prompt) in enumerate(prompts.items()):
        before.submit(item(request_id, prompt, slot=slot))
    run_until(before, *prompts, n=4)
    generated = {request_id: before.emitted(request_id) for request_id in prompts}
    drop(before, "a", leaves_state=True)
    for slot, (request_id, prompt) in enumerate(prompts.items()):
        after.submit(taken_over(request_id, prompt, generated[request_id], slot=slot))
    after.settle()
    drop(before, "b", leaves_state=True)
    assert run_out(after) <= 2  # one token of each; that of the first may have come already
    for request_id, prompt in prompts.items():
        assert after.emitted(request_id) == answer_to(prompt, ANSWER)[len(generated[request_id]) :]
    for world in (before, after):
        world.engine.close()


def test_a_request_whose_state_never_comes_is_computed_again(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    generated = begun(before, "a")
    drop(before, "a", leaves_state=False)
    after.submit(taken_over("a", PROMPT, generated))
    assert run_out(after) == len(PROMPT) + len(generated)
    assert after.emitted("a") == answer_to(PROMPT, ANSWER)[len(generated) :]
    for world in (before, after):
        world.engine.close()


def test_a_drained_engine_leaves_every_request_and_nothing_else(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    before.submit(item("ended", PROMPT[::-1]))
    run_out(before)
    prompts = {"a": PROMPT, "b": [5, *PROMPT]}
    for slot, (request_id, prompt) in enumerate(prompts.items()):
        before.submit(item(request_id, prompt, slot=slot))
    run_until(before, *prompts, n=3)
    generated = {request_id: before.emitted(request_id) for request_id in prompts}
    before.engine.flush(10.0, requests_only=True)
    assert files(root) == ["exchange", "exchange"]
    for slot, (request_id, prompt) in enumerate(prompts.items()):
        after.submit(taken_over(request_id, prompt, generated[request_id], slot=slot))
    assert run_out(after) == 2
    for request_id, prompt in prompts.items():
        assert after.emitted(request_id) == answer_to(prompt, ANSWER)[len(generated[request_id]) :]
    for world in (before, after):
        world.engine.close()


def test_what_no_request_needs_is_not_kept_where_there_is_no_disk_tier(root: Path) -> None:
    world = world_of(root)
    for i in range(8):
        world.submit(item(f"r{i}", [i, *PROMPT]))
        run_out(world)
    world.engine.limit_host(0)
    world.engine.flush(10.0)
    settle_disk(world)
    assert files(root) == []
    world.engine.close()


def test_the_exchange_holds_no_more_than_it_may(root: Path) -> None:
    one = state_of(PROMPT).n_bytes
    disk = Disk(root, IDENTITY)
    for i in range(3):
        disk.offer(state_of([i, *PROMPT[1:]]), 2 * one)
    disk.wait_for_writes(10.0)
    assert files(root) == ["exchange", "exchange"]
    assert "2" in disk.take_error()
    disk.close()


def test_what_is_not_taken_is_removed_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(root, IDENTITY)
    disk.offer(state_of(PROMPT), MEMORY)
    disk.wait_for_writes(10.0)
    monkeypatch.setattr(claims, "_EXCHANGE_S", -1.0)
    disk.offer(state_of(PROMPT[::-1]), MEMORY)
    disk.wait_for_writes(10.0)
    assert files(root) == ["exchange"]
    disk.close()


def test_the_state_of_another_model_is_left_where_it_is(root: Path) -> None:
    other = Disk(root, OTHER)
    other.offer(state_of(PROMPT, identity=OTHER, scope="tenant/t"), MEMORY)
    other.wait_for_writes(10.0)
    world = world_of(root)
    world.submit(taken_over("a", PROMPT, []))
    assert run_out(world) == len(PROMPT)
    assert files(root) == ["exchange"]
    other.close()
    world.engine.close()


def test_workers_of_one_folder_have_one_exchange_and_others_another(root: Path) -> None:
    disks = [Disk(root / name, IDENTITY) for name in ("a", "a", "b")]
    names = [disk.exchange for disk in disks]
    assert names[0] == names[1] != names[2]
    for disk in disks:
        disk.close()


def test_nothing_of_it_is_left_once_all_workers_have_ended(root: Path) -> None:
    worlds = [world_of(root), world_of(root)]
    for world in worlds:
        world.engine.close()
    assert [*root.parent.iterdir()] == []


def test_what_was_left_outlives_the_worker_that_left_it(root: Path) -> None:
    before = world_of(root)
    generated = begun(before, "a")
    before.engine.hand_over_all(10.0)
    before.engine.close()
    after = world_of(root)
    after.submit(taken_over("a", PROMPT, generated))
    assert run_out(after) == 1
    after.engine.close()
    assert [*root.parent.iterdir()] == []


def test_a_worker_that_starts_removes_what_dead_fleets_have_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Disk(root.with_name("another"), IDENTITY, is_tier=False)
    dead.offer(state_of(PROMPT), MEMORY)
    dead.wait_for_writes(10.0)
    dead._folder.close()  # as a kill does
    monkeypatch.setattr(claims, "_EXCHANGE_S", -1.0)
    disk = Disk(root, IDENTITY, is_tier=False)
    disk.flush()
    assert [path.name for path in root.parent.iterdir()] == ["fleet"]
    disk.close()


@pytest.mark.parametrize("is_link", [True, False])
def test_a_folder_that_others_can_look_into_is_not_used(tmp_path: Path, is_link: bool) -> None:
    """Anybody can make one in shared memory."""
    (tmp_path / "theirs").mkdir(mode=0o777)
    (tmp_path / "theirs").chmod(0o777)
    path = tmp_path / "theirs"
    if is_link:
        path = tmp_path / "link"
        path.symlink_to(tmp_path / "theirs")
    with pytest.raises(DiskUnavailable, match="not a folder for this user alone"):
        Disk(path / "fleet", IDENTITY, is_tier=False)
    assert [*(tmp_path / "theirs").iterdir()] == []


def test_a_state_that_comes_too_late_is_not_kept(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    before.submit(item("a", PROMPT))
    run_until(before, "a", n=4)
    after.submit(taken_over("a", PROMPT, before.emitted("a")))
    after.ahead_s += 1  # and no longer
    assert run_out(after) >= len(PROMPT)
    drop(before, "a", leaves_state=True)
    after.submit(item("other", PROMPT[::-1]))
    run_out(after)
    settle_disk(after)
    assert [name for name in files(root) if name != "exchange"] == []
    for world in (before, after):
        world.engine.close()


def test_what_was_found_for_a_request_that_is_cancelled_is_dropped(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    before.submit(item("a", PROMPT))
    run_until(before, "a", n=4)
    drop(before, "a", leaves_state=True)
    after.submit(taken_over("a", PROMPT, []))
    after.cancel("a")
    after.settle()
    settle_disk(after)
    assert [name for name in files(root) if name != "exchange"] == []
    for world in (before, after):
        world.engine.close()


def test_a_worker_leaves_the_state_of_a_request_that_begins_alike_to_another_one(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    own, other = [*PROMPT, 1], [*PROMPT, 2]
    disk = Disk(root, IDENTITY, is_tier=False)
    disk.offer(state_of(other, scope="tenant/t"), MEMORY)
    disk.wait_for_writes(10.0)
    after.submit(taken_over("a", own, []))
    run_out(after)
    assert files(root) == ["exchange"]
    disk.close()
    for world in (before, after):
        world.engine.close()


def test_a_folder_that_was_removed_is_made_again_for_this_user_alone(root: Path) -> None:
    disk = Disk(root, IDENTITY, is_tier=False)
    disk.flush()
    shutil.rmtree(root.parent)
    disk.offer(state_of(PROMPT), MEMORY)
    disk.wait_for_writes(10.0)
    assert files(root) == ["exchange"]
    assert root.parent.stat().st_mode & 0o077 == 0
    disk.close()
