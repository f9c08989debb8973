"""State that left the KV cache is found again by its tokens, whole, and within the budgets."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from harness.kv_states import IDENTITY, is_whole, state_of
from harness.long_lists import long_lists
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.worker.engine.kv.envelope import Envelope, Identity
from inferflux.worker.engine.tiers.disk import Disk
from inferflux.worker.engine.tiers.index import BLOCK
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.reads import Fetch
from inferflux.worker.engine.tiers.tiers import Tiers

# What a state of 64 tokens and 1,000 bytes of payload takes with its header.
SIZE = state_of(range(64)).n_bytes


@dataclass(eq=False)
class Waiting:
    """A preempted sequence."""

    urgency: float
    arrival: int = 0

    @property
    def order(self) -> tuple[float, int]:
        return self.urgency, self.arrival


def tiers_of(
    host_states: int, disk: Disk | None = None, *, disk_states: int = 0, rate: float = 1e-3
) -> Tiers[Waiting]:
    """Tiers with room for this many states of 64 tokens; computing a token takes `rate` seconds."""
    made: Tiers[Waiting] = Tiers(
        IDENTITY, host_bytes=host_states * SIZE, disk=disk, disk_bytes=disk_states * SIZE
    )
    made.rates.prefill.observe(1, rate)
    return made


def prompt(kind: int, n: int = 64) -> list[int]:
    return list(range(kind * 1000, kind * 1000 + n))


def look_up(tiers: Tiers[Waiting], tokens: list[int], *, scope: str = "s") -> Envelope | None:
    found = tiers.find(scope, np.array(tokens, np.int32))
    return None if found is None else brought(tiers, tiers.fetch(found))


def brought(tiers: Tiers[Waiting], fetch: Fetch[Waiting]) -> Envelope | None:
    if fetch.reading is not None:
        fetch.reading.result()
    return tiers.fetched(fetch)


def settle(tiers: Tiers[Waiting], disk: Disk) -> None:
    disk.flush()
    tiers.poll()


def test_a_kept_prefix_is_found_by_longer_and_by_branching_tokens() -> None:
    tiers = tiers_of(3)
    tiers.keep(state_of(prompt(1)))
    array = np.array([*prompt(1, 40), *prompt(2, 30)], np.int32)
    found = tiers.find("s", array)
    assert found is not None
    assert (found.tokens, found.tier) == (40, Tier.HOST)
    assert look_up(tiers, [*prompt(1), 7]) is not None
    assert tiers.take_counts().hits == {Tier.HOST: 1, Tier.DISK: 0}


def test_the_last_token_is_left_to_be_computed() -> None:
    tiers = tiers_of(1)
    tiers.keep(state_of(prompt(1)))
    found = tiers.find("s", np.array(prompt(1), np.int32))
    assert found is not None
    assert found.tokens == 63


def test_a_scope_does_not_find_what_another_keeps() -> None:
    tiers = tiers_of(1)
    tiers.keep(state_of(prompt(1), scope="a"))
    assert look_up(tiers, prompt(1), scope="b") is None
    assert look_up(tiers, prompt(1), scope="a") is not None


def test_what_the_kv_cache_has_already_is_not_restored() -> None:
    tiers = tiers_of(1)
    tiers.keep(state_of(prompt(1)))
    tokens = np.array([*prompt(1), 5], np.int32)
    assert tiers.find("s", tokens, known=64 - BLOCK) is not None
    assert tiers.find("s", tokens, known=64 - BLOCK + 1) is None


def test_restoring_that_takes_longer_than_computing_is_not_chosen() -> None:
    tiers = tiers_of(1, rate=1e-9)
    tiers.rates.copy_in.observe(1, 1e-6)
    tiers.keep(state_of(prompt(1)))
    assert look_up(tiers, prompt(1)) is None


def test_what_is_kept_already_is_not_wanted_again() -> None:
    tiers = tiers_of(2)
    tokens = np.array(prompt(1), np.int32)
    assert tiers.wants("s", tokens, SIZE)
    tiers.keep(state_of(prompt(1)))
    assert not tiers.wants("s", tokens, SIZE)
    assert not tiers.wants("s", tokens[:40], SIZE)
    assert tiers.wants("t", tokens, SIZE)
    assert not tiers.wants("s", tokens[: BLOCK - 1], SIZE)
    assert not tiers.wants("t", tokens, 3 * SIZE)


def test_the_copies_of_a_prefix_have_to_beat_computing_what_the_kv_cache_loses() -> None:
    tiers = tiers_of(1)
    tiers.rates.copy_out.observe(SIZE, 0.02)
    tokens = np.array(prompt(1), np.int32)
    assert tiers.wants("s", tokens, SIZE, left=40)  # 24 tokens take 0.024 s
    assert not tiers.wants("s", tokens, SIZE, left=50)


def test_a_branch_of_a_kept_prefix_has_to_add_enough_for_the_memory_it_takes() -> None:
    tiers = tiers_of(4)
    tiers.keep(state_of(prompt(1)))
    small, large = [*prompt(1, 60), *prompt(2, 4)], [*prompt(1, 50), *prompt(2, 14)]
    assert not tiers.wants("s", np.array(small, np.int32), SIZE)
    assert tiers.wants("s", np.array(large, np.int32), SIZE)
    assert tiers.wants("s", np.array([*prompt(1), *prompt(2, 4)], np.int32), SIZE)  # it replaces the other


def test_what_is_kept_already_is_no_gain_of_another_copy() -> None:
    tiers = tiers_of(4)
    tiers.keep(state_of(prompt(1, 40)))
    tiers.rates.copy_out.observe(SIZE, 0.03)
    tokens = np.array(prompt(1), np.int32)
    assert not tiers.wants("s", tokens, SIZE)  # 24 tokens take 0.024 s
    assert tiers.wants("t", tokens, SIZE)


def test_a_longer_prefix_takes_the_place_of_those_it_begins_with() -> None:
    tiers = tiers_of(3)
    tiers.keep(state_of(prompt(1, 40)))
    tiers.keep(state_of(prompt(1)))
    assert tiers.used(Tier.HOST) == (SIZE, 1)
    assert look_up(tiers, prompt(1, 40)) is not None


def test_what_a_preempted_sequence_waits_for_stays_though_a_longer_prefix_has_it_too() -> None:
    tiers = tiers_of(3)
    owner = Waiting(1.0)
    tiers.hold(state_of(prompt(1, 32)), owner)
    tiers.keep(state_of(prompt(1)))
    assert tiers.used(Tier.HOST)[1] == 2
    assert tiers.preempted_bytes == state_of(prompt(1, 32)).n_bytes
    tiers.resumed(owner)
    assert (tiers.used(Tier.HOST)[1], tiers.preempted_bytes) == (1, 0)


def test_preempted_sequences_come_before_cold_prefixes_and_urgent_ones_first() -> None:
    tiers = tiers_of(2)
    tiers.keep(state_of(prompt(1)))
    urgent, other, last = Waiting(1.0), Waiting(2.0), Waiting(3.0)
    assert tiers.hold(state_of(prompt(2)), other) == []
    assert tiers.hold(state_of(prompt(3)), last) == []
    assert look_up(tiers, prompt(1)) is None
    assert tiers.hold(state_of(prompt(4)), urgent) == [last]
    assert tiers.hold(state_of(prompt(5)), Waiting(9.0)) is None
    tiers.keep(state_of(prompt(6)))
    assert look_up(tiers, prompt(6)) is None
    tiers.resumed(urgent)
    assert look_up(tiers, prompt(4)) is None
    tiers.release(other)
    tiers.keep(state_of(prompt(7)))
    tiers.keep(state_of(prompt(8)))
    assert tiers.used(Tier.HOST) == (2 * SIZE, 2)
    assert look_up(tiers, prompt(2)) is None


def test_what_host_memory_has_no_room_for_is_found_on_disk_and_comes_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(1, disk, disk_states=2)
    for kind in (1, 2, 3):
        tiers.keep(state_of(prompt(kind)))
        settle(tiers, disk)
    assert (tiers.used(Tier.HOST), tiers.used(Tier.DISK)) == ((SIZE, 1), (2 * SIZE, 2))
    found = tiers.find("s", np.array(prompt(1), np.int32))
    assert found is not None
    assert found.tier is Tier.DISK
    envelope = look_up(tiers, prompt(1))
    assert envelope is not None
    assert is_whole(envelope)
    found = tiers.find("s", np.array(prompt(1), np.int32))
    assert found is not None
    assert found.tier is Tier.HOST
    settle(tiers, disk)
    assert look_up(tiers, prompt(2)) is None  # the disk had room for two
    assert look_up(tiers, prompt(3)) is not None
    assert tiers.take_counts().evictions[Tier.DISK] == 1
    tiers.close()


def test_a_preempted_sequence_that_lost_its_place_is_found_by_its_tokens(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(1, disk, disk_states=2)
    loser = Waiting(2.0)
    tiers.hold(state_of(prompt(1)), loser)
    assert tiers.hold(state_of(prompt(2)), Waiting(1.0)) == [loser]
    settle(tiers, disk)
    tiers.resumed(loser)
    tiers.release(loser)
    assert look_up(tiers, [*prompt(1), 9]) is not None
    tiers.close()


def test_a_new_process_finds_what_the_last_one_stored(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=4)
    tiers.keep(state_of(prompt(1)))
    tiers.keep(state_of(prompt(2)))
    settle(tiers, disk)
    tiers.close()
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(2, disk, disk_states=1)
    settle(tiers, disk)
    assert tiers.used(Tier.DISK) == (SIZE, 1)
    assert look_up(tiers, prompt(1)) is None
    assert look_up(tiers, prompt(2)) is not None
    tiers.close()


@pytest.mark.parametrize("damage", ["gone", "damaged", "unreadable"])
def test_a_file_that_cannot_be_read_is_a_miss_and_leaves_nothing(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=1)
    tiers.keep(state_of(prompt(1)))
    settle(tiers, disk)
    (path,) = (tmp_path / "0").glob("*.kv")
    if damage == "gone":
        path.unlink()
    elif damage == "unreadable":

        def fail(_name: str, _identity: Identity) -> Envelope:
            raise OSError("an error of the disk")

        monkeypatch.setattr(disk._folder, "read", fail)
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert look_up(tiers, prompt(1)) is None
    assert tiers.used(Tier.DISK) == (0, 0)
    assert tiers.find("s", np.array(prompt(1), np.int32)) is None
    settle(tiers, disk)
    assert not path.exists()
    tiers.close()


def slow_down(disk: Disk, *, seconds: float = 0.0, until: threading.Event | None = None) -> list[str]:
    """Have each read take longer; returns a list that gets the name of each file that is read."""
    folder, began = disk._folder, list[str]()
    read = folder.read

    def slow(name: str, identity: Identity) -> Envelope:
        began.append(name)
        if until is not None:
            until.wait()
        time.sleep(seconds)
        return read(name, identity)

    folder.read = slow  # type: ignore[method-assign]
    return began


def test_a_disk_that_is_slower_than_computing_is_read_seldom(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=2)  # 64 tokens take 0.064 s to compute
    tiers.rates.copy_in.observe(SIZE, 1e-4)
    tiers.keep(state_of(prompt(1)))
    settle(tiers, disk)
    reads = slow_down(disk, seconds=0.5)
    assert look_up(tiers, [*prompt(1), 7]) is not None  # it was not measured before
    copy_s = tiers.rates.copy_in.seconds_per_unit
    for _ in range(50):
        assert look_up(tiers, [*prompt(1), 7]) is None
    assert len(reads) == 1
    assert tiers.rates.copy_in.seconds_per_unit == copy_s
    tiers.close()


def test_a_read_that_others_wait_for_counts_for_the_next(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=2)
    for kind in (1, 2):
        tiers.keep(state_of(prompt(kind)))
    settle(tiers, disk)
    tiers.rates.read.observe(SIZE, 0.04)  # two reads take longer than computing 64 tokens
    go_on = threading.Event()
    slow_down(disk, until=go_on)
    first = tiers.find("s", np.array([*prompt(1), 7], np.int32))
    assert first is not None
    fetch = tiers.fetch(first)
    assert tiers.find("s", np.array([*prompt(2), 7], np.int32)) is None
    go_on.set()
    assert brought(tiers, fetch) is not None
    assert look_up(tiers, [*prompt(2), 7]) is not None
    tiers.close()


def test_a_file_is_read_once_for_all_that_wait_for_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=2)
    tiers.keep(state_of(prompt(1)))
    settle(tiers, disk)
    go_on = threading.Event()
    reads = slow_down(disk, until=go_on)
    tokens = np.array([*prompt(1), 7], np.int32)
    fetches = []
    for _ in range(3):
        found = tiers.find("s", tokens)
        assert found is not None
        fetches.append(tiers.fetch(found))
    tiers.abandon(fetches.pop())
    go_on.set()
    for fetch in fetches:
        envelope = brought(tiers, fetch)
        assert envelope is not None
        assert is_whole(envelope)
    assert len(reads) == 1
    assert look_up(tiers, [*prompt(1), 7]) is not None  # nothing is read any more, so it is read again
    assert len(reads) == 2
    tiers.close()


def test_a_late_read_that_others_wait_for_still_keeps_new_ones_from_the_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=2)
    tiers.keep(state_of(prompt(1)))
    settle(tiers, disk)
    go_on = threading.Event()
    slow_down(disk, until=go_on)
    tokens = np.array([*prompt(1), 7], np.int32)
    found = tiers.find("s", tokens)
    assert found is not None
    late, patient = tiers.fetch(found), tiers.fetch(found)
    tiers.abandon(late, is_late=True)
    assert tiers.find("s", tokens) is None
    go_on.set()
    assert brought(tiers, patient) is not None
    tiers.poll()
    assert tiers.find("s", tokens) is not None
    tiers.close()


def test_a_read_that_is_late_keeps_others_from_the_disk_and_tells_its_time(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(1, disk, disk_states=3)
    for kind in (1, 2, 3):
        tiers.keep(state_of(prompt(kind)))
    settle(tiers, disk)
    go_on = threading.Event()
    reads = slow_down(disk, until=go_on)
    found = tiers.find("s", np.array([*prompt(1), 7], np.int32))
    assert found is not None
    fetch = tiers.fetch(found)
    assert fetch.reading is not None
    while not reads:
        time.sleep(0.001)
    tiers.abandon(fetch, is_late=True)
    assert tiers.find("s", np.array([*prompt(2), 7], np.int32)) is None
    assert tiers.find("s", np.array([*prompt(3), 7], np.int32)) is not None  # host memory has it
    go_on.set()
    fetch.reading.result()
    tiers.poll()
    assert tiers.rates.read.seconds_per_unit > 0
    found = tiers.find("s", np.array([*prompt(1), 7], np.int32))
    assert found is not None
    assert found.tier is Tier.HOST  # what it brought is not lost
    assert tiers.find("s", np.array([*prompt(2), 7], np.int32)) is not None
    tiers.close()


def test_a_read_that_all_gave_up_before_it_began_is_no_fault(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=2)
    for kind in (1, 2):
        tiers.keep(state_of(prompt(kind)))
    settle(tiers, disk)
    go_on = threading.Event()
    slow_down(disk, until=go_on)
    wanted = [np.array([*prompt(kind), 7], np.int32) for kind in (1, 2, 2)]
    matches = [tiers.find("s", tokens) for tokens in wanted]
    first, *others = [tiers.fetch(match) for match in matches if match is not None]
    assert len(others) == 2
    for fetch in others:
        tiers.abandon(fetch, is_late=True)
    tiers.poll()
    go_on.set()
    assert brought(tiers, first) is not None
    assert look_up(tiers, [*prompt(2), 7]) is not None
    tiers.close()


def stored_kinds(folder: Path, *, disk_states: int) -> list[int]:
    """Which of the prompts 1 to 9 a new process finds on disk."""
    disk = Disk(folder, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=disk_states)
    settle(tiers, disk)
    found = [kind for kind in range(1, 10) if tiers.find("s", np.array([*prompt(kind), 7], np.int32))]
    tiers.close()
    return found


def test_what_is_stored_at_the_end_is_found_again_and_keeps_its_order(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(3, disk, disk_states=4)
    for kind in (1, 2, 3, 4):
        tiers.keep(state_of(prompt(kind)))  # 1 goes to disk
    settle(tiers, disk)
    (path,) = tmp_path.glob("0/*.kv")
    os.utime(path, ns=(0, time.time_ns() - 10**10))  # some time ago
    look_up(tiers, [*prompt(2), 7])
    assert [kept.tokens[0] for kept in tiers.cold_in_host()] == [2000, 4000, 3000]
    assert all(tiers.files.store(kept, 5.0) for kept in tiers.cold_in_host())
    assert tiers.stored(5.0) == (3, 3 * SIZE)
    tiers.close()
    assert stored_kinds(tmp_path, disk_states=4) == [1, 2, 3, 4]
    assert stored_kinds(tmp_path, disk_states=2) == [2, 4]
    assert stored_kinds(tmp_path, disk_states=1) == [2]


def test_storing_ends_where_the_disk_or_the_time_does(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(4, disk, disk_states=2)
    for kind in (1, 2, 3):
        tiers.keep(state_of(prompt(kind)))
    last, before, _ = tiers.cold_in_host()
    assert tiers.files.store(last, 5.0)
    assert tiers.files.store(last, 5.0)  # it is there
    assert tiers.files.store_new(state_of(prompt(4)), 5.0)
    assert not tiers.files.store(before, 5.0)
    assert not tiers.files.store_new(state_of(prompt(5)), 5.0)
    assert tiers.stored(5.0) == (2, 2 * SIZE)
    assert tiers.find("s", np.array(prompt(5), np.int32)) is None
    tiers.close()
    assert stored_kinds(tmp_path, disk_states=4) == [3, 4]
    go_on = threading.Event()
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(4, disk, disk_states=2)
    disk._writer.submit(go_on.wait)
    assert tiers.files.store_new(state_of(prompt(6)), 5.0)
    assert tiers.stored(0.0) == (0, 0)
    go_on.set()
    tiers.close()


def test_what_comes_moves_and_goes_is_told(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(1, disk, disk_states=1)

    def told() -> list[tuple[int, Tier | None]]:
        return [(kept.number, kept.tier if kept.is_kept else None) for kept in tiers.take_moved(10)]

    tiers.keep(state_of(prompt(1)))
    assert told() == [(1, Tier.HOST)]
    tiers.keep(state_of(prompt(2)))
    settle(tiers, disk)
    assert sorted(told()) == [(1, Tier.DISK), (2, Tier.HOST)]
    tiers.keep(state_of(prompt(3)))
    settle(tiers, disk)
    assert dict(told()) == {1: None, 2: Tier.DISK, 3: Tier.HOST}
    assert told() == []
    tiers.keep(state_of(prompt(4)))
    assert [kept.is_kept for kept in tiers.take_moved(1)].count(True) == 1  # what went is told beside it
    assert tiers.has_moved
    assert told() != []
    assert not tiers.has_moved
    tiers.report_all()
    settle(tiers, disk)
    assert sorted(told()) == [(3, Tier.DISK), (4, Tier.HOST)]
    tiers.close()


def test_clearing_frees_both_tiers_of_all_but_what_preempted_requests_wait_for(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(2, disk, disk_states=4)
    waiting = Waiting(1.0)
    assert tiers.hold(state_of(prompt(9)), waiting) == []
    for kind in range(3):  # two of them go to the disk
        tiers.keep(state_of(prompt(kind)))
    settle(tiers, disk)
    assert tiers.clear() == {Tier.HOST: (1, SIZE), Tier.DISK: (2, 2 * SIZE)}
    settle(tiers, disk)
    assert (tiers.used(Tier.HOST), tiers.used(Tier.DISK)) == ((SIZE, 1), (0, 0))
    assert list(tmp_path.glob("0/*.kv")) == []
    assert all(look_up(tiers, prompt(kind)) is None for kind in range(3))
    assert tiers.preempted_bytes == SIZE
    tiers.resumed(waiting)
    assert tiers.used(Tier.HOST) == (0, 0)
    tiers.close()


def test_clearing_one_scope_leaves_the_others(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(2, disk, disk_states=4)
    for kind, scope in enumerate(("a", "b", "a", "b")):
        tiers.keep(state_of(prompt(kind), scope=scope))
    settle(tiers, disk)
    assert tiers.clear("a") == {Tier.HOST: (1, SIZE), Tier.DISK: (1, SIZE)}
    settle(tiers, disk)
    found = [look_up(tiers, prompt(kind), scope=scope) for kind, scope in enumerate(("a", "b", "a", "b"))]
    assert [each is not None for each in found] == [False, True, False, True]
    tiers.close()


def test_files_that_are_found_after_clearing_are_removed(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=4)
    tiers.keep(state_of(prompt(1), scope="a"))
    tiers.keep(state_of(prompt(2), scope="b"))
    settle(tiers, disk)
    tiers.close()
    disk = Disk(tmp_path, IDENTITY)
    following = tiers_of(0, disk, disk_states=4)
    assert following.is_scanning
    assert following.clear("a") == {Tier.HOST: (0, 0), Tier.DISK: (0, 0)}
    settle(following, disk)
    assert not following.is_scanning
    assert look_up(following, prompt(1), scope="a") is None
    assert look_up(following, prompt(2), scope="b") is not None
    following.keep(state_of(prompt(3), scope="a"))
    settle(following, disk)
    assert look_up(following, prompt(3), scope="a") is not None
    following.close()


def test_a_state_that_is_cleared_while_it_is_written_is_not_found_later(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=4)
    settle(tiers, disk)
    tiers.keep(state_of(prompt(1)))
    assert tiers.clear()[Tier.DISK] == (1, SIZE)
    settle(tiers, disk)
    assert list(tmp_path.glob("0/*.kv")) == []
    assert tiers.used(Tier.DISK) == (0, 0)
    tiers.close()


def test_a_state_that_is_stored_again_is_not_told_by_what_became_of_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the first is removed after it was written, and before the second is."""
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=1)
    settle(tiers, disk)
    goes_on = threading.Event()
    remove = disk._folder.remove

    def removed(name: str) -> None:
        remove(name)
        assert goes_on.wait(20)

    monkeypatch.setattr(disk._folder, "remove", removed)
    tiers.keep(state_of(prompt(1)))
    tiers.clear()
    tiers.keep(state_of(prompt(1)))
    deadline = time.monotonic() + 20
    while not disk._changes and time.monotonic() < deadline:
        time.sleep(0.001)
    tiers.poll()
    assert look_up(tiers, prompt(1)) is not None
    goes_on.set()
    settle(tiers, disk)
    assert tiers.used(Tier.DISK) == (SIZE, 1)
    assert len(list(tmp_path.glob("0/*.kv"))) == 1
    tiers.close()


def test_what_waits_to_be_written_is_found_in_memory(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(0, disk, disk_states=1)
    tiers.keep(state_of(prompt(1)))
    found = tiers.find("s", np.array(prompt(1), np.int32))
    assert found is not None
    assert found.tier is Tier.HOST
    settle(tiers, disk)
    found = tiers.find("s", np.array(prompt(1), np.int32))
    assert found is not None
    assert found.tier is Tier.DISK
    tiers.close()


_STEPS = long_lists(
    st.tuples(
        st.sampled_from(["keep", "hold", "resumed", "release", "find", "settle", "restart"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(_STEPS, st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=40)
def test_what_is_found_was_kept_and_is_whole_and_budgets_hold(
    steps: list[tuple[str, list[int], str, int]], host_states: int, disk_states: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder), IDENTITY)
        tiers = tiers_of(host_states, disk, disk_states=disk_states)
        kept: set[tuple[str, tuple[int, ...]]] = set()
        waiting: list[Waiting] = []
        for i, (step, blocks, scope, urgency) in enumerate(steps):
            tokens = np.repeat(blocks, BLOCK).tolist()
            if step == "keep" and tiers.wants(scope, np.array(tokens, np.int32), SIZE):
                tiers.keep(state_of(tokens, scope=scope))
                kept.add((scope, tuple(tokens)))
            elif step == "hold":
                owner = Waiting(urgency, i)
                losers = tiers.hold(state_of(tokens, scope=scope), owner)
                if losers is not None:
                    assert all(loser.order > owner.order for loser in losers)
                    waiting = [w for w in waiting if w not in losers] + [owner]
                    kept.add((scope, tuple(tokens)))
            elif step == "resumed" and waiting:
                tiers.resumed(waiting.pop(urgency % len(waiting)))
            elif step == "release" and waiting:
                tiers.release(waiting.pop(urgency % len(waiting)))
            elif step == "find":
                found = tiers.find(scope, np.array([*tokens, 7], np.int32))
                if found is not None:
                    n = found.tokens
                    assert any(of == scope and list(whole[:n]) == tokens[:n] for of, whole in kept)
                    envelope = brought(tiers, tiers.fetch(found))
                    assert envelope is None or is_whole(envelope)
            elif step == "settle":
                settle(tiers, disk)
            elif step == "restart":
                settle(tiers, disk)
                tiers.close()
                disk = Disk(Path(folder), IDENTITY)
                tiers = tiers_of(host_states, disk, disk_states=disk_states)
                waiting = []
                settle(tiers, disk)
            assert tiers.used(Tier.HOST)[0] <= host_states * SIZE
            assert tiers.used(Tier.DISK)[0] <= disk_states * SIZE
            assert tiers.used(Tier.HOST)[1] >= len(waiting)
            assert tiers.preempted_bytes == sum(tiers._by_owner[w].n_bytes for w in waiting)
            assert all(tiers._by_owner[w] in tiers._host for w in waiting)
        settle(tiers, disk)
        on_disk = sum(path.stat().st_size for path in Path(folder).glob("*/*.kv"))
        assert on_disk == tiers.used(Tier.DISK)[0]
        tiers.close()


def test_a_lower_limit_has_the_least_used_and_the_least_urgent_leave_host_memory(tmp_path: Path) -> None:
    disk = Disk(tmp_path, IDENTITY)
    tiers = tiers_of(4, disk, disk_states=4)
    first, last = Waiting(1.0), Waiting(2.0)
    tiers.keep(state_of(prompt(1)))
    tiers.keep(state_of(prompt(2)))
    for kind, owner in ((3, last), (4, first)):
        assert tiers.hold(state_of(prompt(kind)), owner) == []
    assert tiers.limit_host(3 * SIZE) == []
    assert tiers.limit_host(SIZE + 1) == [last]
    assert tiers.used(Tier.HOST) == (SIZE, 1)
    settle(tiers, disk)
    assert tiers.used(Tier.DISK)[1] == 3, "what leaves host memory goes to disk"
    assert tiers.limit_host(0) == [first]
    assert tiers.limit_host(9 * SIZE) == []
    assert tiers.has_room(9 * SIZE, first.order)
    tiers.close()
