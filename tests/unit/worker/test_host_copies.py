"""A process that is killed leaves its host memory to its successor, in shared memory, and no other one has
it."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from harness.kv_states import IDENTITY, is_whole, state_of
from harness.long_lists import long_lists
from harness.profiles import examples
from harness.worker import batch_item, resume_item
from harness.worker_world import WorkerWorld, answer_to
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.engine.kv.envelope import Identity
from inferflux.worker.engine.tiers import claims, folder
from inferflux.worker.engine.tiers.disk import Disk
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.tiers import Tiers

PROMPT = [(7 * i) % 40 for i in range(60)]
OTHER = replace(IDENTITY, model="n")
MEMORY = 1 << 20
ANSWER = 12
SIZE = state_of(range(64)).n_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a fleet, in one that is for this user alone."""
    (tmp_path / "ifx_kv_0").mkdir(mode=0o700)
    return tmp_path / "ifx_kv_0" / "fleet"


def world_of(root: Path, *, n_bytes: int = MEMORY, identity: Identity = IDENTITY) -> WorkerWorld:
    """A worker whose KV cache has room for one sequence."""
    return WorkerWorld(
        slots=1,
        sequences=1,
        cells=120,
        host_bytes=MEMORY,
        disk=Disk(root, identity, is_tier=False),
        disk_bytes=n_bytes,
        has_prefix_cache=False,
    )


def item(request_id: str, prompt: list[int] = PROMPT, *, scope: str = "") -> worker_pb2.BatchItem:
    made = batch_item(request_id, model="m", prompt=prompt, max_tokens=ANSWER)
    made.request.cache_scope = scope
    return made


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


def preempted(world: WorkerWorld, request_id: str = "a", *, scope: str = "") -> list[int]:
    """Have a request computed, and evicted for another one, which ends; returns what it has generated."""
    assert not world.submit(item(request_id, scope=scope)).refused
    while len(world.emitted(request_id)) < 4:
        world.settle()
    run = world.runs[request_id]
    wanted = worker_pb2.Deschedule(tenant="t", request_id=request_id, epoch=1, run=run)
    assert not world.submit(item(f"{request_id}-other", [1, 2, 3]), deschedule=(wanted,)).refused
    run_out(world)
    return world.emitted(request_id)


def resume(world: WorkerWorld, request_id: str = "a") -> int:
    """Have a preempted request go on to its end; returns the tokens that were prefilled."""
    made = resume_item(request_id)
    made.request.model = "m"
    world.runs[request_id] += 1
    made.run = world.runs[request_id]
    assert not world.submit(made, phase=worker_pb2.PHASE_DECODE).refused
    return run_out(world)


def going_on(generated: list[int], *, scope: str = "") -> worker_pb2.BatchItem:
    """The request's next attempt."""
    made = item("a", scope=scope)
    made.request.epoch, made.seeks_state = 2, True
    made.request.generated_token_ids.extend(generated)
    return made


def disk_of(world: WorkerWorld) -> Disk:
    disk = world.engine._tiers._disk
    assert disk is not None
    return disk


def kill(disk: Disk, *, is_gone: bool = True) -> None:
    """End a process once it has written all; nothing is cleaned up.

    Args:
        is_gone: whether its memory is freed already.
    """
    for executor in (disk._writer, disk._reader, disk._searcher):
        executor.shutdown()
    if is_gone:
        disk._folder.close()


def written(world: WorkerWorld) -> None:
    disk_of(world).flush()
    world.engine._tiers.poll()


def files(root: Path) -> list[str]:
    """The folder of each state that lies below `root`."""
    return [path.parent.name for path in sorted(root.glob("*/*.kv"))]


def test_a_request_that_was_preempted_when_its_engine_was_killed_goes_on_where_it_was(root: Path) -> None:
    before = world_of(root)
    generated = preempted(before)
    kill(disk_of(before))
    assert "0" in files(root)
    after = world_of(root)
    after.submit(going_on(generated))
    assert run_out(after) == 1
    assert after.emitted("a") == answer_to(PROMPT, ANSWER)[len(generated) :]
    after.engine.close()
    assert [*root.parent.iterdir()] == []


def test_a_worker_that_lives_goes_on_with_it_as_well(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    generated = preempted(before)
    after.submit(going_on(generated))
    after.settle()
    assert after.emitted("a") == []  # it lives
    kill(disk_of(before))
    assert run_out(after) == 1
    assert after.emitted("a") == answer_to(PROMPT, ANSWER)[len(generated) :]
    after.engine.close()


def test_cold_prefixes_of_a_killed_engine_serve_new_requests_of_their_scope_alone(root: Path) -> None:
    before = world_of(root)
    preempted(before)
    before.cancel("a")
    before.settle()
    kill(disk_of(before))
    after = world_of(root)
    longer = [*PROMPT, 5, 6]
    after.submit(item("foreign", longer, scope="u"))
    assert run_out(after) == len(longer)
    after.submit(item("own", longer))
    assert run_out(after) <= len(longer) - len(PROMPT) + 1
    for request_id in ("foreign", "own"):
        assert after.emitted(request_id) == answer_to(longer, ANSWER)
    after.engine.close()
    assert [*root.parent.iterdir()] == []


def test_what_a_process_leaves_that_takes_a_while_to_die_is_found(root: Path) -> None:
    before = world_of(root)
    preempted(before)
    before.cancel("a")
    before.settle()
    kill(disk_of(before), is_gone=False)
    after = world_of(root)
    assert after.engine._tiers.is_scanning
    after.engine._tiers.poll()
    assert after.engine._tiers.used(Tier.DISK) == (0, 0)
    disk_of(before)._folder.close()
    while after.engine._tiers.is_scanning:
        time.sleep(0.01)
        after.engine._tiers.poll()
    after.submit(item("b"))
    assert run_out(after) == 1
    after.engine.close()


def test_an_engine_of_another_model_leaves_it_where_it_is(root: Path) -> None:
    before = world_of(root)
    generated = preempted(before)
    kill(disk_of(before))
    left = files(root)
    other = Disk(root, OTHER, is_tier=False)
    other.flush()
    assert files(root) == left
    after = world_of(root)
    after.submit(going_on(generated))
    assert run_out(after) == 1
    after.engine.close()
    other.close()
    assert [*root.parent.iterdir()] == []


def test_what_is_not_inherited_is_removed_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world_of(root)
    preempted(before)
    kill(disk_of(before))
    for path in root.glob("0/*.kv"):
        os.utime(path, (0, 0))
    other = Disk(root, OTHER, is_tier=False)
    other.flush()
    assert files(root) != []  # its process lived a moment ago
    monkeypatch.setattr(claims, "_EXCHANGE_S", -1.0)
    another = Disk(root, OTHER, is_tier=False)
    another.flush()
    assert files(root) == []
    another.close()
    other.close()
    assert [*root.parent.iterdir()] == []


def test_its_file_goes_when_a_state_leaves_host_memory(root: Path) -> None:
    world = world_of(root)
    preempted(world)
    written(world)
    n_other = len(files(root)) - 1  # the other request's
    resume(world)
    written(world)
    assert len(files(root)) == n_other
    assert world.emitted("a") == answer_to(PROMPT, ANSWER)
    world.engine.clear_cache(engine_pb2.EngineClearCache(clear=scheduler_pb2.ClearCache(tiers=True)))
    written(world)
    assert files(root) == []
    world.engine.close()


def test_a_preempted_request_that_moves_has_its_file_moved(root: Path) -> None:
    before, after = world_of(root), world_of(root)
    generated = preempted(before)
    written(before)
    path = max(root.glob("0/*.kv"), key=lambda path: path.stat().st_size)  # the other request is short
    inode = path.stat().st_ino
    before.engine.cancel("t.a", is_silent=True, leaves_state=True)
    disk_of(before).flush()
    assert (root / "exchange" / path.name).stat().st_ino == inode
    after.submit(going_on(generated))
    assert run_out(after) == 1
    for world in (before, after):
        world.engine.close()
    assert [*root.parent.iterdir()] == []


def full(_envelope: object, **_options: object) -> str:
    raise OSError(28, "no space left")


@pytest.mark.parametrize("lack", ["limit", "space"])
def test_without_room_in_shared_memory_host_memory_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    world = world_of(root, n_bytes=100 if lack == "limit" else MEMORY)
    if lack == "space":
        monkeypatch.setattr(disk_of(world)._folder, "write", full)
    preempted(world)
    written(world)
    assert files(root) == []
    assert world.engine._tiers.files.copies.used == 0
    assert world.engine._tiers.take_error() == ""
    assert disk_of(world).can_write(SIZE)  # others may be written
    assert resume(world) == 0
    assert world.emitted("a") == answer_to(PROMPT, ANSWER)
    world.engine.close()


def test_what_leaves_in_pieces_has_the_room_that_copies_leave(root: Path) -> None:
    tokens = np.arange(8192, dtype=np.int32)
    state = state_of(tokens.tolist())
    limit = 4 * state.n_bytes
    tiers: Tiers[Waiting] = Tiers(
        IDENTITY, host_bytes=limit, disk=Disk(root, IDENTITY, is_tier=False), disk_bytes=limit
    )
    tiers.keep(state)
    assert tiers.files.copies.used == state.n_bytes
    with pytest.raises(OSError, match="the exchange has 0 of"):
        tiers.pieces.blank("", tokens[:8], 0, limit - state.n_bytes)
    tiers.pieces.blank("", tokens[:8], 0, limit - 2 * state.n_bytes)
    tiers.close()


def test_as_much_as_half_of_the_limit_stays_free_in_shared_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root, IDENTITY, is_tier=False)
    state, limit = state_of(PROMPT), 10 * SIZE

    def free(n_bytes: int) -> None:
        found = os.statvfs_result((1, 1, n_bytes, n_bytes, n_bytes, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _path: found)

    free(state.n_bytes + limit // 2 - 1)
    disk.write(state, most_bytes=limit)
    disk.flush()
    assert files(root) == []
    free(state.n_bytes + limit // 2)
    disk.write(state, most_bytes=limit)
    disk.flush()
    assert files(root) == ["0"]
    disk.offer(state_of(PROMPT[::-1]), limit)
    disk.write(state_of([1, *PROMPT]), most_bytes=2 * state.n_bytes - 1)
    disk.flush()
    assert files(root) == ["0", "exchange"]
    kill(disk)


def test_a_copy_that_is_not_needed_any_more_is_not_written(root: Path) -> None:
    disk = Disk(root, IDENTITY, is_tier=False)
    go_on, names = threading.Event(), []
    write = disk._folder.write
    disk._folder.write = lambda envelope, **options: names.append(write(envelope, **options)) or ""  # type: ignore[method-assign,func-returns-value]
    disk._writer.submit(go_on.wait)
    state = state_of(PROMPT)
    disk.write(state, most_bytes=MEMORY)
    disk.remove(folder.name_of(state.header))
    go_on.set()
    disk.flush()
    assert names == []
    disk.write(state, most_bytes=MEMORY)
    disk.flush()
    assert files(root) == ["0"]
    assert disk.can_write(1 << 28)
    kill(disk)


@dataclass(eq=False)
class Waiting:
    """A preempted sequence."""

    urgency: float
    arrival: int

    @property
    def order(self) -> tuple[float, int]:
        return self.urgency, self.arrival


class Lives:
    """The engines that follow each other in a folder, and the tokens that each state was made of."""

    def __init__(self, root: Path, host: int, shared: int) -> None:
        self._root, self._host, self._shared = root, host, shared
        self._waiting: list[Waiting] = []
        self._arrivals = 0
        self._begin()

    def _begin(self) -> None:
        self.disk = Disk(self._root, IDENTITY, is_tier=False)
        self.tiers: Tiers[Waiting] = Tiers(
            IDENTITY, host_bytes=self._host * SIZE, disk=self.disk, disk_bytes=self._shared * SIZE
        )
        self.tiers.rates.prefill.observe(1, 1e-3)

    def keep(self, kind: int) -> None:
        tokens = tokens_of(kind)
        if self.tiers.wants(scope_of(kind), tokens, SIZE):
            self.tiers.keep(state_of(tokens.tolist(), scope=scope_of(kind)))

    def hold(self, kind: int) -> None:
        self._arrivals += 1
        owner = Waiting(float(kind % 3), self._arrivals)
        lost = self.tiers.hold(state_of(tokens_of(kind).tolist(), scope=scope_of(kind)), owner)
        if lost is not None:
            self._waiting = [each for each in self._waiting if each not in lost] + [owner]

    def _one(self, kind: int, do: Callable[[Waiting], None]) -> None:
        if self._waiting:
            do(self._waiting.pop(kind % len(self._waiting)))

    def resume(self, kind: int) -> None:
        self._one(kind, self.tiers.resumed)

    def release(self, kind: int) -> None:
        self._one(kind, self.tiers.release)

    def look_up(self, kind: int) -> None:
        self.tiers.poll()
        found = self.tiers.find(scope_of(kind), np.append(tokens_of(kind), 7).astype(np.int32))
        if found is None:
            return
        fetch = self.tiers.fetch(found)
        if fetch.reading is not None:
            fetch.reading.result()
        envelope = self.tiers.fetched(fetch)
        assert envelope is not None
        assert is_whole(envelope)
        assert envelope.header.scope == scope_of(kind)

    def limit(self, kind: int) -> None:
        lost = self.tiers.limit_host(kind % (self._host + 1) * SIZE)
        self._waiting = [each for each in self._waiting if each not in lost]

    def offer(self, kind: int) -> None:
        self.tiers.exchange.offer(state_of(tokens_of(kind).tolist(), scope=scope_of(kind)))

    def seek(self, kind: int) -> None:
        search = self.tiers.exchange.search(scope_of(kind), tokens_of(kind))
        assert search is not None
        search.until_s = 0.0  # looks once
        self._wait()
        self.tiers.exchange.end(search)

    def clear(self, kind: int) -> None:
        self.tiers.clear(scope_of(kind) if kind % 2 else "")

    def kill(self, _kind: int) -> None:
        kept = {folder.name_of(each.header) for each in self.tiers.files.copies.held()}
        kill(self.disk)
        self._waiting = []
        self._begin()
        self._wait()
        now = {folder.name_of(each.header) for each in self.tiers.files.space.held()}
        # What was offered meanwhile took its file along.
        assert kept <= now | {path.name for path in self.disk.exchange_path.glob("*.kv")}

    def _wait(self) -> None:
        while self.tiers.is_scanning:
            self.tiers.poll()

    def check(self) -> None:
        """Every file is of a state that is counted, once."""
        self.disk.flush()
        self.tiers.poll()
        self.disk.flush()
        states, copies = self.tiers.files.space, self.tiers.files.copies
        in_host = set(self.tiers._host.held())
        assert set(copies.held()) <= in_host
        assert not in_host & set(states.held())
        assert copies.used <= self._shared * SIZE // 2
        assert self.tiers.used(Tier.HOST) == (sum(each.n_bytes for each in in_host), len(in_host))
        names = [each.name for each in (*states.held(), *copies.held())]
        assert len(set(names)) == len(names)
        own = {path.name for path in self.disk._folder.path.glob("*")} - {"lock"}
        exchange = {path.name for path in self.disk.exchange_path.glob("*.kv")}
        assert own <= set(names)
        assert set(names) <= own | exchange
        total = sum(path.stat().st_size for path in self._root.glob("*/*.kv"))
        assert total <= self._shared * SIZE


def tokens_of(kind: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(kind * 100, kind * 100 + 64, dtype=np.int32)


def scope_of(kind: int) -> str:
    return "even" if kind % 2 == 0 else "odd"


OPERATIONS = ("keep", "hold", "resume", "release", "look_up", "limit", "offer", "seek", "clear", "kill")


@settings(max_examples=examples(200))
@given(
    host=st.integers(0, 5),
    shared=st.integers(0, 12),
    events=long_lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7)), max_size=30),
)
def test_each_file_is_of_a_state_and_none_is_left(
    host: int, shared: int, events: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "ifx_kv_0" / "fleet"
        lives = Lives(root, host, shared)
        for name, kind in events:
            getattr(lives, name)(kind)
            lives.check()
        for path in lives.disk.exchange_path.glob("*.kv"):
            path.unlink()
        lives.tiers.clear()
        lives.tiers.close()
        left = {path.name for path in root.glob("*/*.kv")}
        assert left == set()
