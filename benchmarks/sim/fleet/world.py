"""A fleet in simulated time: schedulers, workers, a network of constant delay, and what NATS keeps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.sim.events import Events
from benchmarks.sim.figures import OUTPUT_COST
from benchmarks.sim.worker import ModelledWorker
from benchmarks.sim.world import START_S
from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.replayed import outcome_of
from inferflux.scheduler.core.workers.slot_table import LiveWorkers
from inferflux.v1 import scheduler_pb2, tokens_pb2, worker_pb2

from .demand import weights
from .history import Ask, Dispatched, History, Served
from .leading import ANSWER_S, Leader
from .meter import Meter
from .scheduler import SchedulerProcess
from .setup import Fleet
from .store import Bucket, WorkQueue

_HOP_S = 0.0005
_BEAT_S = 1.0
# A worker that left or died is replaced after this.
_AWAY_S = 5.0
_PATIENCE_S = 600.0


@dataclass(slots=True, eq=False)
class Host:
    """A worker process and where it is.

    Attributes:
        wake_s: when it is to be called next; older calls are skipped.
        last: its last heartbeat, and the bytes of that: the same bytes are the same message.
    """

    worker: ModelledWorker
    zone: str
    partition: Partition
    is_alive: bool = True
    wake_s: float | None = None
    last: tuple[bytes, scheduler_pb2.WorkerStatus] | None = None


class FleetWorld:
    """Runs until every request has ended, or nothing ends any more.

    Args:
        arrivals: in order of time.
        on_second: told of each simulated second that has passed.
    """

    def __init__(
        self, fleet: Fleet, arrivals: Iterable[Ask], *, on_second: Callable[[float], None] = lambda _s: None
    ) -> None:
        self.fleet = fleet
        self.events = Events(START_S)
        self.history = History()
        self.meter = Meter()
        self.bucket = Bucket()
        self.queues = {partition: WorkQueue() for partition in fleet.all_partitions}
        self.known_workers = {partition: LiveWorkers() for partition in fleet.all_partitions}
        self.asks: dict[RequestKey, Ask] = {}
        self.hosts: dict[str, Host] = {}
        self.schedulers: dict[str, SchedulerProcess] = {}
        self._on_second = on_second
        self._arrivals = iter(arrivals)
        self._is_arriving = True
        self._n_open = 0
        self._leading: dict[Partition, dict[Leader, SchedulerProcess]] = defaultdict(dict)
        self._incarnations: Counter[str] = Counter()
        self._random: Random = fleet.random("what happens")
        # Zones that are lost: what is sent there gets no answer.
        self._lost_zones: set[str] = set()
        self._places: dict[str, tuple[str, str]] = {}
        self._cut_off: set[str] = set()
        # Tenants whose shares are looked at, and what they were served in this second.
        self._shared = weights(fleet)
        self._served: dict[str, float] = defaultdict(float)
        self._n_waiting = 0
        number = 0
        for model, count in fleet.workers_of.items():
            for of_model in range(count):
                self._places[f"w{number:05d}"] = model, fleet.zones[of_model % len(fleet.zones)]
                number += 1

    @property
    def now(self) -> float:
        return self.events.now

    def run(self) -> FleetWorld:
        for worker_id in self._places:
            self.events.after(self._random.random() * _BEAT_S, self.start_worker, worker_id)
        for name in self.fleet.scheduler_names:
            self.start_scheduler(name)
        self._schedule_next_arrival()
        self.events.after(_BEAT_S, self._look_around)
        while (self._is_arriving or self._n_open or any(self.queues.values())) and self.events.step():
            if self.now - START_S > self.fleet.seconds + _PATIENCE_S:
                self.history.is_stuck = f"{self._n_open} requests have not ended"
                break
        for leaders in self._leading.values():
            self.history.leads += [leader.lead for leader in leaders]
        self.history.asks = list(self.asks.values())
        return self

    def send(self, do: Callable[..., None], *arguments: Any) -> None:
        """A message: it takes a moment, and comes even if its sender is gone by then."""
        self.events.after(_HOP_S, do, *arguments)

    # Schedulers

    def start_scheduler(self, name: str) -> None:
        self._incarnations[name] += 1
        process = SchedulerProcess(self, name, self._incarnations[name])
        self.schedulers[name] = process
        process.start()

    def kill_scheduler(self, name: str, why: str = "killed") -> None:
        self.schedulers.pop(name).kill(why)

    def end_scheduler(self, name: str) -> None:
        """It leaves in order."""
        self.schedulers.pop(name).leave()

    def tell_alive(self, name: str, *, is_leaving: bool) -> None:
        for process in list(self.schedulers.values()):
            if process.name != name:
                self.send(self._on_alive, process, name, is_leaving)

    @staticmethod
    def _on_alive(process: SchedulerProcess, name: str, is_leaving: bool) -> None:
        process.on_alive(name, is_leaving=is_leaving)

    def begin_lead(self, process: SchedulerProcess, leader: Leader) -> None:
        self._leading[leader.partition][leader] = process
        leader.begin()

    def end_lead(self, _process: SchedulerProcess, leader: Leader, why: str) -> None:
        leader.end(why)
        del self._leading[leader.partition][leader]
        self.history.leads.append(leader.lead)

    def leaders_of(self, partition: Partition) -> list[Leader]:
        return list(self._leading[partition])

    def announce(self, partition: Partition, term: int) -> None:
        """A leader publishes that it leads: workers answer with heartbeats."""
        for host in self.hosts.values():
            if host.partition is partition:
                self.send(self._on_announced, host, term)

    def _on_announced(self, host: Host, term: int) -> None:
        if host.is_alive and term >= host.worker.term:
            host.worker.term = term
            self._send_beat(host)

    def tell_served(self, partition: Partition, term: int, served: dict[str, float]) -> None:
        for other, leaders in self._leading.items():
            if other is not partition:
                for leader in list(leaders):
                    leader.on_served(partition, term, served)

    # Workers

    def start_worker(self, worker_id: str) -> None:
        """Nothing if it runs, or its zone is lost."""
        model, zone = self._places[worker_id]
        if worker_id in self.hosts or zone in self._lost_zones:
            return
        self._incarnations[worker_id] += 1
        worker = ModelledWorker(
            worker_id,
            self.fleet.worker,
            output_of=lambda key: self.asks[key].output_tokens,
            readers=self,
            served=model,
            incarnation=self._incarnations[worker_id],
            started_at=int(self.now * 1000),
        )
        self._cut_off.discard(worker_id)
        host = self.hosts[worker_id] = Host(worker, zone, self.fleet.partition_of(model))
        self._beat(host)

    def end_worker(self, worker_id: str) -> None:
        """It leaves in order: what it has goes to others."""
        host = self.hosts[worker_id]
        host.worker.look(self.now)
        host.worker.leave()
        self._follow(host)
        self._remove(host)
        self.events.after(_AWAY_S, self.start_worker, worker_id)

    def kill_worker(self, worker_id: str) -> None:
        host = self.hosts[worker_id]
        host.worker.look(self.now)
        self._follow(host)
        self._remove(host)
        self.events.after(_AWAY_S, self.start_worker, worker_id)

    def lose_zone(self, zone: str) -> list[str]:
        """All that is in a zone is gone at once, and what is sent there gets no answer. Returns its
        schedulers."""
        self._lost_zones.add(zone)
        for worker_id, host in list(self.hosts.items()):
            if host.zone == zone:
                host.worker.look(self.now)
                self._follow(host)
                self._cut(host.worker)
                self._remove(host)
                self._cut_off.add(worker_id)
        lost = [name for name in self.schedulers if self.fleet.zone_of_scheduler(name) == zone]
        for name in lost:
            self.kill_scheduler(name, "zone lost")
        return lost

    def bring_back(self, zone: str) -> None:
        """Its workers start anew, within a few seconds."""
        self._lost_zones.discard(zone)
        for worker_id, (_, where) in self._places.items():
            if where == zone:
                self.events.after(self._random.random() * _AWAY_S, self.start_worker, worker_id)

    def replace_some(self, leaving: float, dying: float) -> None:
        """Parts of the workers leave and die."""
        n_leaving, n_dying = (self._draw(part * len(self.hosts)) for part in (leaving, dying))
        chosen = self._random.sample(list(self.hosts), n_leaving + n_dying)
        for worker_id in chosen[:n_leaving]:
            self.end_worker(worker_id)
        for worker_id in chosen[n_leaving:]:
            self.kill_worker(worker_id)

    def _draw(self, mean: float) -> int:
        return int(mean) + (self._random.random() < mean % 1)

    def _cut(self, worker: ModelledWorker) -> None:
        """The streams of a lost zone stand still from now on."""
        for key in worker.residents:
            ask = self.asks[key]
            if ask.generated and ask.cut_s is None:
                ask.cut_s = self.now
                ask.recomputed += ask.prompt_tokens + ask.generated

    def _remove(self, host: Host) -> None:
        host.is_alive = False
        del self.hosts[host.worker.worker_id]

    def _beat(self, host: Host) -> None:
        if host.is_alive:
            self._send_beat(host)
            self.events.after(_BEAT_S, self._beat, host)

    def _send_beat(self, host: Host) -> None:
        status = host.worker.beat(self.now)
        status.zone = host.zone
        data = status.SerializeToString()
        if host.last is not None and host.last[0] == data:
            status = host.last[1]
        host.last = data, status
        self._follow(host)
        self.send(self._on_heartbeat, host.partition, status)

    def _on_heartbeat(self, partition: Partition, status: scheduler_pb2.WorkerStatus) -> None:
        self.known_workers[partition].on_heartbeat(status, self.now)
        for leader, process in list(self._leading[partition].items()):
            process.on_term(partition, status.term)
            leader.on_heartbeat(status)

    def _on_event(self, partition: Partition, event: scheduler_pb2.WorkerEvent) -> None:
        if event.HasField("worker_left"):
            self.known_workers[partition].on_left(event.worker_id, event.incarnation)
        for leader in self.leaders_of(partition):
            leader.on_event(event)

    def _follow(self, host: Host) -> None:
        """After anything done to a worker: carry its events, note when it is due."""
        for event in host.worker.take_events():
            self.send(self._on_event, host.partition, event)
        due_s = host.worker.next_s
        if due_s is not None and due_s != host.wake_s:
            self.events.at(due_s, self._wake, host, due_s)
        host.wake_s = due_s

    def _wake(self, host: Host, due_s: float) -> None:
        if host.is_alive and host.wake_s == due_s:
            host.wake_s = None
            host.worker.look(self.now)
            self._follow(host)

    # What leaders send

    def deliver(self, leader: Leader, worker_id: str, batch: worker_pb2.RequestBatch, sent_s: float) -> None:
        host = self.hosts.get(worker_id)
        if host is None:
            is_cut = worker_id in self._cut_off
            wait_s = ANSWER_S if is_cut else _HOP_S
            unanswered = lambda: leader.on_no_answer(batch.batch_id, is_delivered=is_cut)  # noqa: E731
            self.events.after(wait_s, unanswered)
            return
        answer = host.worker.take_batch(batch, self.now)
        accepted = set(answer.accepted_request_ids)
        if accepted:
            self.history.dispatches.append(
                Dispatched(
                    sent_s,
                    worker_id,
                    host.worker.incarnation,
                    host.worker.model,
                    leader.partition,
                    batch.term,
                    leader.scheduler,
                )
            )
        for item in batch.items:
            if item.request.request_id in accepted:
                self._note_placed(self.asks[RequestKey(item.request.tenant, item.request.request_id)], host)
        self._follow(host)
        self.send(leader.on_answer, answer)

    def command(self, worker_id: str, command: worker_pb2.WorkerCommand) -> None:
        if (host := self.hosts.get(worker_id)) is not None:
            host.worker.take_command(command, self.now)
            self._follow(host)

    def probe(self, leader: Leader, worker_id: str, incarnation: str) -> None:
        host = self.hosts.get(worker_id)
        if host is None:
            is_gone = worker_id not in self._cut_off
            wait_s = _HOP_S if is_gone else ANSWER_S
            unanswered = lambda: leader.on_no_probe(worker_id, incarnation, is_gone=is_gone)  # noqa: E731
            self.events.after(wait_s, unanswered)

    # Requests

    def _schedule_next_arrival(self) -> None:
        ask = next(self._arrivals, None)
        if ask is None:
            self._is_arriving = False
        else:
            self.events.at(ask.at_s, self._arrive, ask)

    def _arrive(self, ask: Ask) -> None:
        while ask.zone in self._lost_zones:  # its client calls another gateway
            ask.zone = self._random.choice(self.fleet.zones)
        self.asks[RequestKey(ask.tenant, ask.name)] = ask
        self._n_open += 1
        self._n_waiting += 1
        self.queues[ask.partition].publish(ask)
        for leader in self.leaders_of(ask.partition):
            self.send(leader.on_job, ask)
        self._schedule_next_arrival()

    def acknowledge(self, ask: Ask) -> None:
        self.queues[ask.partition].acknowledge(ask)

    def _note_placed(self, ask: Ask, host: Host) -> None:
        ask.dispatches += 1
        ask.worker_id = host.worker.worker_id
        if ask.placed_s is None:
            ask.placed_s = self.now
            self._n_waiting -= 1

    # What readers are given

    def on_tokens(
        self,
        key: RequestKey,
        epoch: int,
        offset: int,
        tokens: int,
        now: float,
        every_s: float,  # noqa: ARG002
    ) -> None:
        """As every reader: chunks of an older epoch do not count, and tokens had already are skipped."""
        ask = self.asks[key]
        if epoch < ask.epoch:
            self.history.counts["chunks of an older epoch"] += 1
            return
        ask.epoch = epoch
        new = offset + tokens - ask.generated
        if offset > ask.generated:
            ask.wrongs.append(f"lost its tokens {ask.generated} to {offset}")
        if new <= 0:
            return
        if ask.ends:
            ask.wrongs.append(f"has tokens from {offset} on after its end")
        ask.generated += new
        cost = OUTPUT_COST * new
        if ask.first_token_s is None:
            ask.first_token_s = now
            cost += ask.prompt_tokens
        elif ask.cut_s is not None:
            ask.pause_s = max(ask.pause_s or 0.0, now - ask.cut_s)
            ask.cut_s = None
        if ask.tenant in self._shared:
            self._served[ask.tenant] += cost

    def on_end(self, key: RequestKey, epoch: int, outcome: str) -> None:
        """A terminal chunk."""
        ask = self.asks[key]
        if epoch < ask.epoch:
            self.history.counts["chunks of an older epoch"] += 1
            return
        ask.ends += 1
        ask.epoch = epoch
        if ask.ends == 1:
            ask.ended_s, ask.outcome = self.now, outcome
            self._n_open -= 1
            if ask.placed_s is None:
                self._n_waiting -= 1

    def on_chunk(self, key: RequestKey, chunk: tokens_pb2.TokenChunk) -> None:
        """A chunk of a scheduler: that a request waits, or its end."""
        if outcome := outcome_of(chunk):
            self.on_end(key, chunk.epoch, outcome)

    # Time

    def _look_around(self) -> None:
        """Once a second: what was served to whom, and how many wait; some workers go."""
        self.history.served.append(Served(self.now, dict(self._served)))
        self.history.waiting.append((self.now, self._n_waiting))
        self._served.clear()
        self.replace_some(self.fleet.leaves_per_s, self.fleet.deaths_per_s)
        self._on_second(self.now - START_S)
        self.events.after(_BEAT_S, self._look_around)
