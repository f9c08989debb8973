"""A request waits for the worker that has its prefix while that is sooner than computing it elsewhere."""

from __future__ import annotations

import pytest
from harness.scheduler_world import MODEL, make_request

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.lifecycle.prefix_waits import MeanService
from inferflux.scheduler.core.order.queue_policies import PolicyName
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.v1 import scheduler_pb2, worker_pb2

START_S = 1_000_000.0
RATE = 1000.0


class Stage:
    """A core, and workers of one slot each that end requests when they are told to. `busy` has the prefix
    and a request that runs; `idle` has nothing. Requests took 100 prompt tokens and 10 generated ones before:
    0.11 s of a worker."""

    def __init__(
        self,
        *,
        rate: float = RATE,
        policy: PolicyName = "priority",
        prefix_wait_s: float = 5.0,
        idle_slots: int = 1,
        has_history: bool = True,
    ) -> None:
        limits = Limits(settle_s=0.0, prefix_wait_s=prefix_wait_s)
        fairness = FairnessSettings(high_priority_threshold=5)
        self.core = SchedulerCore(limits, now=START_S, policy=policy, fairness=fairness)
        self.now = START_S
        self.placed: dict[str, str] = {}
        self.waited: dict[str, bool] = {}
        self._slots = {"busy": 1, "idle": idle_slots}
        self._rate = rate
        for worker_id in self._slots:
            self.beat(worker_id)
        self.perform(self.core.on_tick(self.now))
        if has_history:
            self.ask("earlier", prompt=100, cached_on={"busy": 16})
            self.end("earlier", computed=100, generated=10)
        self.ask("runs", prompt=50, cached_on={"busy": 32})
        assert self.placed["runs"] == "busy"

    def beat(self, worker_id: str, state: scheduler_pb2.WorkerState.ValueType | None = None) -> None:
        status = scheduler_pb2.WorkerStatus(
            worker_id=worker_id,
            incarnation="i",
            state=scheduler_pb2.WORKER_STATE_READY if state is None else state,
            slots=self._slots[worker_id],
            kv_cells=50_000,
            prefill_tokens_per_s=self._rate,
            decode_tokens_per_s=self._rate,
        )
        status.models.add(name=MODEL, context_length=8192)
        for key, at in self.placed.items():
            if at == worker_id and (job := self.core.jobs.get(RequestKey("acme", key))) is not None:
                status.residents.add(
                    tenant="acme",
                    request_id=key,
                    epoch=job.epoch,
                    slot=self.core.table.workers[worker_id].assignments[job.key].slot or 0,
                    residence=scheduler_pb2.RESIDENCE_RUNNING,
                    prompt_tokens=job.prompt_tokens,
                )
        self.perform(self.core.on_heartbeat(status, self.now))

    def ask(
        self,
        name: str,
        *,
        prompt: int = 500,
        cached_on: dict[str, int] | None = None,
        priority: int = 0,
        within_s: float = 0.0,
    ) -> None:
        request = make_request(name, prompt=prompt, max_tokens=10, priority=priority)
        request.enqueued_unix_ms = round(self.now * 1000)
        if within_s:
            request.deadline_unix_ms = round((self.now + within_s) * 1000)
        self.perform(self.core.on_job(request, name, len(self.core.jobs) + 1, self.now, cached_on))

    def end(self, name: str, computed: int = 20, generated: int = 10) -> None:
        job = self.core.jobs[RequestKey("acme", name)]
        event = scheduler_pb2.WorkerEvent(worker_id=self.placed[name], incarnation="i")
        ended = event.request_finished
        ended.tenant, ended.request_id, ended.epoch, ended.outcome = "acme", name, job.epoch, "stop"
        ended.usage.prompt_tokens = job.prompt_tokens
        ended.usage.cached_prompt_tokens = job.prompt_tokens - computed
        ended.usage.completion_tokens = generated
        self.perform(self.core.on_event(event, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.core.on_tick(self.now))

    def perform(self, todo: list[Action]) -> None:
        """Workers accept all."""
        todo = [*todo, *self.core.plan(self.now)]
        for action in todo:
            if isinstance(action, actions.PrefixWaited):
                self.waited[action.key.request_id] = action.is_there
            if isinstance(action, actions.Dispatch):
                names = [item.request.request_id for item in action.batch.items]
                self.placed |= dict.fromkeys(names, action.worker_id)
                answer = worker_pb2.BatchAccepted(batch_id=action.batch.batch_id, accepted_request_ids=names)
                self.perform(self.core.on_batch_answer(answer, self.now))


@pytest.mark.parametrize("policy", ["priority", "fcfs", "sjf", "fair"])
def test_a_request_waits_for_its_prefix_and_others_go_past_it(policy: PolicyName) -> None:
    stage = Stage(policy=policy)
    stage.ask("waits", cached_on={"busy": 480})
    assert "waits" not in stage.placed
    stage.ask("other", prompt=20)
    assert stage.placed["other"] == "idle"
    stage.end("runs")
    assert stage.placed["waits"] == "busy"
    assert stage.waited == {"waits": True}


def test_it_waits_no_longer_than_computing_takes() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480})
    stage.pass_time(0.47)
    assert "waits" not in stage.placed
    stage.pass_time(0.02)
    assert stage.placed["waits"] == "idle"
    assert stage.waited == {"waits": False}


def test_a_wait_that_is_over_does_not_begin_again() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480})
    stage.ask("other", prompt=20)
    assert stage.placed["other"] == "idle"
    stage.pass_time(0.49)
    assert "waits" not in stage.placed  # no worker has a slot
    stage.end("other", computed=20)
    assert stage.placed["waits"] == "idle"


@pytest.mark.parametrize(
    ("why", "stage_of", "asks"),
    [
        ("it is urgent", {}, {"priority": 5}),
        ("it saves less than others take", {}, {"cached_on": {"busy": 100}}),
        ("it could miss its deadline", {}, {"within_s": 0.9}),
        ("waiting is off", {"prefix_wait_s": 0.0}, {}),
        ("no speed is known", {"rate": 0.0}, {}),
        ("no request has ended yet", {"has_history": False}, {}),
        ("the other worker has it as well", {}, {"cached_on": {"busy": 480, "idle": 480}}),
    ],
)
def test_it_goes_to_another_worker_at_once(
    why: str, stage_of: dict[str, float], asks: dict[str, object]
) -> None:
    stage = Stage(**stage_of)  # type: ignore[arg-type]
    stage.ask("r", **({"cached_on": {"busy": 480}} | asks))  # type: ignore[arg-type]
    assert stage.placed["r"] == "idle", why
    assert stage.waited == {}


def test_a_deadline_that_leaves_time_does_not_keep_it_from_waiting() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480}, within_s=2.0)
    assert "waits" not in stage.placed


def test_those_that_wait_already_lengthen_the_wait() -> None:
    """Each takes 0.11 s, so the fifth would wait for 0.55 s and saves 0.48."""
    stage = Stage(idle_slots=8)
    for number in range(5):
        stage.ask(f"r{number}", cached_on={"busy": 480})
    assert [stage.placed.get(f"r{number}") for number in range(5)] == [None, None, None, None, "idle"]


def test_what_computing_elsewhere_delays_counts() -> None:
    """It saves 0.1 s, and waits for 0.11 s: not for itself alone, but for two."""
    alone, beside = Stage(idle_slots=2), Stage(idle_slots=2)
    beside.ask("other", prompt=20)
    for stage in (alone, beside):
        stage.ask("r", cached_on={"busy": 100})
    assert alone.placed["r"] == beside.placed["other"] == "idle"
    assert "r" not in beside.placed


def test_a_hot_prefix_does_not_keep_one_worker_busy_and_the_other_idle() -> None:
    """As many wait as are worth it; all others run elsewhere, and bring the prefix there."""
    stage = Stage(idle_slots=8)
    for number in range(40):
        stage.ask(f"r{number}", cached_on={"busy": 480})
    assert len([worker for worker in stage.placed.values() if worker == "idle"]) >= 4
    stage.pass_time(5.0)
    assert len([worker for worker in stage.placed.values() if worker == "idle"]) == 8


def test_the_order_of_those_that_wait_is_kept() -> None:
    stage = Stage()
    stage.ask("first", cached_on={"busy": 480})
    stage.ask("second", cached_on={"busy": 480})
    stage.ask("later but above", cached_on={"busy": 480}, priority=4)
    order: list[str] = []
    for _ in range(3):
        stage.end("runs" if not order else order[-1])
        order += [name for name in stage.placed if name not in ("earlier", "runs", *order)]
    assert order == ["later but above", "first", "second"]


@pytest.mark.parametrize("event", ["worker_left", "worker_died"])
def test_when_the_worker_is_gone_the_wait_is_over(event: str) -> None:
    stage = Stage(idle_slots=2)
    stage.ask("waits", cached_on={"busy": 480})
    gone = scheduler_pb2.WorkerEvent(worker_id="busy", incarnation="i")
    getattr(gone, event).SetInParent()
    stage.perform(stage.core.on_event(gone, stage.now))
    assert stage.placed["waits"] == "idle"


def test_when_the_worker_drains_the_wait_is_over() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480})
    stage.beat("busy", scheduler_pb2.WORKER_STATE_DRAINING)
    stage.pass_time(0.1)
    assert stage.placed["waits"] == "idle"


def test_a_request_that_waits_can_be_cancelled() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480})
    key = RequestKey("acme", "waits")
    _, todo = stage.core.cancels.on_cancel(Attempt(key), stage.now)
    stage.perform(todo)
    assert key not in stage.core.jobs
    stage.end("runs")
    assert len(stage.core.queue) == 0
    assert stage.core.queue.of(MODEL).waited_for == ()


def test_it_is_still_in_the_queue() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480})
    queue = stage.core.queue.of(MODEL)
    assert len(queue) == 1
    assert queue.position(stage.core.jobs[RequestKey("acme", "waits")]) == 0
    assert queue.oldest_enqueued_s() is not None


def test_what_becomes_urgent_waits_no_more() -> None:
    stage = Stage()
    stage.ask("waits", cached_on={"busy": 480}, priority=3)
    assert "waits" not in stage.placed
    stage.core.set_fairness(FairnessSettings(high_priority_threshold=3))
    stage.perform([])
    assert stage.placed["waits"] == "idle"


def test_the_mean_follows_what_requests_take() -> None:
    mean = MeanService()
    mean.add(100, 10)
    mean.add(300, 30)
    assert (mean.computed, mean.generated) == (200, 20)
    for _ in range(100):
        mean.add(0, 0)
    assert mean.computed < 1
