"""A request goes on while a client reads it, and for its window after that: no longer, and never less."""

from __future__ import annotations

import pytest
from harness.profiles import examples
from harness.scheduler_world import World, make_request, still_held
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.lifecycle.checks import check_readers
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.v1 import scheduler_pb2

KEY = RequestKey("acme", "r1")
ATTEMPT = Attempt(KEY, "a1")
LIMIT_S = 30.0


@pytest.fixture
def world() -> World:
    """One worker. A second after the start of a scheduler its jobs count as new."""
    made = World(Limits(settle_s=0.0, unread_limit_s=LIMIT_S, stuck_s=0))
    made.add_worker("w1", slots=1)
    made.settle()
    pass_time(made, 5.0)
    return made


def submit(world: World, request_id: str = "r1", *, window_s: int = 0, attempt: str = "a1") -> RequestKey:
    request = make_request(request_id, at=world.now, max_tokens=20, attempt=attempt, window_s=window_s)
    key = world.submit(request)
    world.settle()
    return key


def pass_time(world: World, seconds: float, *, read_by: str = "") -> None:
    """The worker beats, and perhaps a gateway."""
    for i in range(round(seconds * 2)):
        if i % 2 == 0:
            world.workers["w1"].beat()
            if read_by:
                world.core.cancels.on_readers(read_by, [ATTEMPT], world.now)
        world.settle()
        world.pass_time(0.5)
    world.settle()


def leave(world: World, gateway: str, *, is_handed_over: bool = False) -> tuple[bool, bool]:
    return world.core.cancels.on_reader_left(gateway, ATTEMPT, world.now, is_handed_over=is_handed_over)


def is_alive(world: World) -> bool:
    return not world.read(KEY).outcome


def test_a_request_without_a_window_may_end_as_soon_as_its_reader_has_left(world: World) -> None:
    submit(world)
    pass_time(world, 5, read_by="g1")
    assert leave(world, "g1") == (True, True)
    pass_time(world, 0.5)  # the gateway that asked may be gone: it ends all the same
    assert world.read(KEY).outcome == "cancelled"
    world.check_quiet()


def test_a_reader_that_leaves_ends_nothing_while_another_gateway_has_one(world: World) -> None:
    submit(world)
    pass_time(world, 2, read_by="g1")
    assert world.core.cancels.on_reader_joined("g2", Attempt(KEY), world.now)
    assert leave(world, "g1") == (True, False)
    pass_time(world, 3 * LIMIT_S, read_by="g2")
    assert is_alive(world)
    assert leave(world, "g2") == (True, True)


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_request_outlives_its_last_reader_by_its_window(world: World, is_queued: bool) -> None:
    if is_queued:
        submit(world, "before", attempt="")
    submit(world, window_s=7)
    pass_time(world, 2, read_by="g1")
    assert leave(world, "g1") == (True, False)
    pass_time(world, 6.5)
    assert is_alive(world)
    pass_time(world, 1)
    assert world.read(KEY).outcome == "cancelled"


def test_a_reader_that_comes_back_within_the_window_keeps_the_request(world: World) -> None:
    submit(world, window_s=7)
    leave(world, "g1")
    pass_time(world, 6)
    assert world.core.cancels.on_reader_joined("g2", Attempt(KEY), world.now)
    pass_time(world, 60, read_by="g2")
    assert is_alive(world)


@pytest.mark.parametrize("window_s", [0, 50])
def test_a_request_outlives_a_killed_gateway_by_the_limit_or_its_window(world: World, window_s: int) -> None:
    submit(world, window_s=window_s)
    pass_time(world, 5, read_by="g1")
    pass_time(world, max(LIMIT_S, window_s) - 2)
    assert is_alive(world)
    pass_time(world, 3)
    assert world.read(KEY).outcome == "cancelled"
    world.check_quiet()


def test_what_a_draining_gateway_handed_over_expires_when_no_client_resumes_it(world: World) -> None:
    submit(world)
    pass_time(world, 2, read_by="g1")
    assert leave(world, "g1", is_handed_over=True) == (True, False)
    pass_time(world, LIMIT_S - 1)
    assert is_alive(world)
    pass_time(world, 2)
    assert world.read(KEY).outcome == "cancelled"


@pytest.mark.parametrize("window_s", [0, 20])
def test_what_a_new_leader_takes_over_and_no_gateway_reports_ends_sooner(window_s: int) -> None:
    """After a restart of everything, unresumed requests keep new ones waiting no longer than this."""
    world = World(Limits(settle_s=0.5, unread_limit_s=LIMIT_S, stuck_s=0))
    world.add_worker("w1", slots=1)
    pass_time(world, 5.0)
    submit(world, window_s=window_s)
    world.restart_scheduler()
    pass_time(world, max(10, window_s) - 2)
    assert is_alive(world)
    pass_time(world, 4)
    assert world.read(KEY).outcome == "cancelled"


def test_what_a_new_leader_takes_over_and_a_gateway_reports_gets_all_its_time() -> None:
    world = World(Limits(settle_s=0.5, unread_limit_s=LIMIT_S, stuck_s=0))
    world.add_worker("w1", slots=1)
    pass_time(world, 5.0)
    submit(world)
    world.restart_scheduler()
    pass_time(world, 2, read_by="g1")
    pass_time(world, LIMIT_S - 2)
    assert is_alive(world)


def test_a_new_leader_ends_nothing_before_other_gateways_could_report(world: World) -> None:
    submit(world)
    pass_time(world, 2, read_by="g2")
    world.restart_scheduler()
    world.settle()
    assert leave(world, "g1") == (True, False)
    pass_time(world, 60, read_by="g2")
    assert is_alive(world)


def test_a_new_leader_ends_what_was_left_once_gateways_could_report(world: World) -> None:
    submit(world)
    world.restart_scheduler()
    world.settle()
    assert leave(world, "g1") == (True, False)
    pass_time(world, 4)
    assert world.read(KEY).outcome == "cancelled"


def test_time_without_the_bus_is_no_time_without_a_reader(world: World) -> None:
    submit(world)
    pass_time(world, 2, read_by="g1")
    world.core.on_connection(False, world.now)
    pass_time(world, 2 * LIMIT_S)
    assert is_alive(world)
    world.core.on_connection(True, world.now)
    pass_time(world, LIMIT_S - 1)
    assert is_alive(world)
    pass_time(world, 2)
    assert world.read(KEY).outcome == "cancelled"


def test_a_scheduler_that_stood_still_blames_no_worker(world: World) -> None:
    submit(world)
    pass_time(world, 2, read_by="g1")
    world.pass_time(10 * LIMIT_S)
    pass_time(world, 2 * LIMIT_S, read_by="g1")
    assert is_alive(world)


def test_a_job_that_no_gateway_submitted_needs_no_reader(world: World) -> None:
    submit(world, attempt="")
    pass_time(world, 10 * LIMIT_S)
    assert is_alive(world)


def test_without_a_limit_only_leaving_counts() -> None:
    world = World(Limits(settle_s=0.0, unread_limit_s=0, stuck_s=0))
    world.add_worker("w1")
    submit(world)
    pass_time(world, 1000)
    assert is_alive(world)
    assert leave(world, "g1") == (True, True)


def test_a_notice_for_another_attempt_changes_nothing(world: World) -> None:
    submit(world, attempt="a2")
    world.cancel(KEY, "a1")
    assert leave(world, "g1") == (False, False)
    assert world.core.cancels.on_reader_joined("g1", ATTEMPT, world.now) is None
    world.settle()
    assert is_alive(world)
    world.cancel(KEY, "a2")
    world.settle()
    assert world.read(KEY).outcome == "cancelled"


def test_an_early_cancel_of_one_attempt_leaves_the_retry_under_its_id_alone(world: World) -> None:
    world.cancel(KEY, "a1")
    world.settle()
    submit(world, attempt="a2")
    pass_time(world, 2, read_by="")
    assert is_alive(world)


def test_an_explicit_cancel_ends_a_request_at_once_whatever_its_window(world: World) -> None:
    submit(world, window_s=300)
    pass_time(world, 2, read_by="g1")
    world.cancel(KEY)
    world.settle()
    assert world.read(KEY).outcome == "cancelled"


def test_an_explicit_cancel_that_finds_nothing_does_not_wait_for_the_next_use_of_the_id(world: World) -> None:
    world.cancel(KEY)
    world.settle()
    submit(world)
    assert is_alive(world)


def test_jobs_that_have_ended_do_not_stay_in_memory_until_their_windows_end() -> None:
    world = World()
    world.core.on_tick(world.now)
    requests = (make_request(f"r{i}", at=1000.0, attempt="a", window_s=80_000) for i in range(1000))
    assert still_held(world, requests) < 200


def test_gateways_that_come_and_go_leave_no_timers_behind(world: World) -> None:
    submit(world, window_s=50)
    for i in range(2000):
        world.core.cancels.on_reader_joined(f"g{i}", ATTEMPT, world.now)
        leave(world, f"g{i}")
        world.now += 0.01
    assert len(world.core.cancels._reader_watch._timers) < 100
    assert len(world.core.jobs[KEY].readers.reported_s) == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (scheduler_pb2.ReaderNotice().SerializeToString(), "gateway_id"),
        (scheduler_pb2.ReaderNotice(gateway_id="a b").SerializeToString(), "gateway_id"),
        (scheduler_pb2.ReaderNotice(gateway_id="g").SerializeToString(), "notice"),
        (
            scheduler_pb2.ReaderNotice(
                gateway_id="g",
                now=scheduler_pb2.ReadersNow(requests=[scheduler_pb2.ReadRequest()] * 10_001),
            ).SerializeToString(),
            "now.requests",
        ),
    ],
)
def test_a_bad_notice_is_refused_by_name(data: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_readers(scheduler_pb2.ReaderNotice.FromString(data))
    assert caught.value.field == field


class Gateways:
    """Two gateways that report each second unless they are cut off, and what must hold of the request."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reading = {"g1"}
        self.cut: set[str] = set()
        self.unsent: set[str] = set()
        # The latest report, and the latest of anything else that gives the request time.
        self.last_s = world.now

    def join(self, gateway: str) -> None:
        if gateway not in self.cut:
            self.reading.add(gateway)
            self.unsent.discard(gateway)
            self.world.core.cancels.on_reader_joined(gateway, Attempt(KEY), self.world.now)

    def leave(self, gateway: str, *, is_handed_over: bool = False) -> None:
        if gateway in self.reading:
            self.reading.discard(gateway)
            if gateway in self.cut:
                self.unsent.add(gateway)
            else:
                leave(self.world, gateway, is_handed_over=is_handed_over)
                self.last_s = self.world.now

    def hand_over(self, gateway: str) -> None:
        self.leave(gateway, is_handed_over=True)

    def die(self, gateway: str) -> None:
        self.reading.discard(gateway)

    def cut_off(self, gateway: str) -> None:
        self.cut.add(gateway)

    def mend(self, gateway: str) -> None:
        self.cut.discard(gateway)
        if gateway in self.unsent:
            self.unsent.discard(gateway)
            leave(self.world, gateway)
            self.last_s = self.world.now

    def restart(self, _gateway: str) -> None:
        self.world.restart_scheduler()
        self.last_s = self.world.now

    def reconnect(self, _gateway: str) -> None:
        self.world.core.on_connection(False, self.world.now)
        self.world.core.on_connection(True, self.world.now)
        self.last_s = self.world.now

    def live(self, limit_s: float) -> None:
        """Let a second pass."""
        readers = self.reading - self.cut
        for name in readers:
            self.world.core.cancels.on_readers(name, [ATTEMPT], self.world.now)
            self.last_s = self.world.now
        was_alive = is_alive(self.world)
        pass_time(self.world, 1.0)
        assert is_alive(self.world) or not (readers and was_alive), "it was read, and ended"
        is_unread = self.world.now - self.last_s > limit_s
        assert not (is_unread and is_alive(self.world)), "no client read it, and it went on"


KINDS = ["join", "leave", "hand_over", "die", "cut_off", "mend", "restart", "reconnect"]
EVENTS = st.tuples(st.sampled_from(KINDS), st.sampled_from(["g1", "g2"]), st.integers(1, 20))


@settings(max_examples=examples(60))
@given(window_s=st.sampled_from([0, 4, 15]), events=st.lists(EVENTS, min_size=2, max_size=20))
def test_whatever_gateways_do_what_is_read_lives_and_what_is_not_ends(
    window_s: int, events: list[tuple[str, str, int]]
) -> None:
    limit_s = 8.0
    world = World(Limits(settle_s=0.0, unread_limit_s=limit_s, stuck_s=0))
    world.add_worker("w1")
    submit(world, window_s=window_s)
    gateways = Gateways(world)
    for kind, gateway, seconds in events:
        getattr(gateways, kind)(gateway)
        for _ in range(seconds):
            gateways.live(max(limit_s, window_s) + 5)
        if not is_alive(world):
            return
