"""Metrics of the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from prometheus_client import REGISTRY, CollectorRegistry

from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.metrics import REQUEST_BUCKETS_S, TIME_TO_FIRST_TOKEN_BUCKETS_S, Declare

from .core.scheduler import SchedulerCore
from .core.types.actions import CommandHost
from .core.types.jobs import JobState
from .core.workers.slots import Start

_ON_WORKERS = frozenset({JobState.DISPATCHING, JobState.RUNNING})
_OUTCOMES = ("stop", "length", "cancelled", "schema_mismatch", "finished", "duplicate")
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_TOKEN_BUCKETS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 65536)
_LOOKUP_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_ANSWER_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 2.0)


class SchedulerMetrics:
    """Gauges follow the core by `observe`; counters and histograms follow its actions."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        declare = Declare(registry)
        gauge, counter, histogram = declare.gauge, declare.counter, declare.histogram
        model = ("model",)
        self.depth = gauge(
            "scheduler_queue_depth",
            "Requests in the queue; those that wait to resume on a worker are not.",
            model,
        )
        self.waiting = gauge("num_requests_waiting", "The same, under the name that vLLM gives it.", model)
        self.running = gauge(
            "num_requests_running", "Requests that run on workers, or are being dispatched.", model
        )
        self.suspects = gauge(
            "scheduler_suspects",
            "Requests that run alone, or wait to, because an engine died while they ran.",
        )
        self.oldest_wait = gauge(
            "scheduler_oldest_wait_seconds",
            "Seconds since the oldest request of the queue was enqueued; 0 without any.",
        )
        self.workers = gauge("scheduler_workers", "Workers that send heartbeats.")
        self.free_slots = gauge("scheduler_free_slots", "Free slots of the workers that take requests.")
        self.queue_time = histogram(
            "request_queue_time_seconds",
            "Seconds from enqueueing at the gateway to the first dispatch.",
            REQUEST_BUCKETS_S,
            model,
        )
        self.batch_size = histogram(
            "scheduler_batch_requests", "Requests in one batch to a worker.", _BATCH_BUCKETS
        )
        self.batch_tokens = histogram(
            "scheduler_batch_tokens", "Tokens to prefill in one batch to a worker.", _TOKEN_BUCKETS
        )
        self.answer_time = histogram(
            "scheduler_dispatch_seconds",
            "Seconds from sending a batch to the worker's answer.",
            _ANSWER_BUCKETS_S,
        )
        self.lookup_time = histogram(
            "prefix_index_lookup_seconds",
            "Seconds of one lookup in the prefix index, of all prompts that came meanwhile.",
            _LOOKUP_BUCKETS_S,
        )
        self.lookups = counter(
            "prefix_index_lookups",
            "Prompts to look up in the prefix index: `hit`, `miss`, `late` (Redis took longer than the "
            "limit), `failed` or `skipped` (Redis was late or failed just before).",
            ("outcome",),
        )
        self.prefix_waits = counter(
            "scheduler_prefix_waits",
            "Requests that waited for the worker that has their prefix: `met` if it took them, `over` if "
            "another did.",
            ("outcome",),
        )
        self.splits = counter(
            "scheduler_splits",
            "New requests of models with prefill workers, by what was decided: `split` between two workers; "
            "or not, where the request is `unsuited`, its prompt `short`, `no_prefill` worker has room, or "
            "that would be `slow`.",
            ("decision",),
        )
        self.moves = counter(
            "scheduler_moves",
            "Requests that were to go on elsewhere with their state: why (`split`, `admin`, `drain` or "
            "`preempted`), and `done`; or not: `gone` or `no_room`, of the other worker, `error` or `late`, "
            "of the state, `over`, where the request ended or changed before.",
            ("why", "outcome"),
        )
        self.retries = counter(
            "scheduler_retries",
            "Requests that their worker lost and that went back to the queue, by cause.",
            ("cause",),
        )
        self.unread = counter("scheduler_unread", "Requests that were cancelled because they had no reader.")
        self.lost = counter(
            "scheduler_lost_jobs", "Requests that ended because the work queue lost their job."
        )
        self.refusals = counter(
            "scheduler_refusals", "Requests of a batch that their worker refused, by reason.", ("reason",)
        )
        self.yields = counter(
            "fairness_yields",
            "Requests that were descheduled before their end: `timeslice`, `preempted` or `memory`.",
            ("reason",),
        )
        self.preemptions = counter(
            "fairness_preemptions", "Requests that were preempted by a more urgent one."
        )
        self.resumes = counter(
            "fairness_resumes",
            "Resident requests that were resumed: `parked` in the KV cache, or `swapped` out of it.",
            ("residence",),
        )
        self.resume_wait = histogram(
            "fairness_resume_wait_seconds",
            "Seconds from descheduling a request to resuming it on the same worker.",
            REQUEST_BUCKETS_S,
        )
        self.tokens = counter("fairness_tokens", "Generated tokens, by priority.", ("priority",))
        self.first_token = histogram(
            "fairness_time_to_first_token_seconds",
            "Seconds from enqueueing to the first token, by priority.",
            TIME_TO_FIRST_TOKEN_BUCKETS_S,
            ("model", "priority"),
        )
        self.ended = counter(
            "scheduler_requests_finished",
            "Acknowledged jobs: `stop`, `length`, `cancelled`, `schema_mismatch`, `finished`, `duplicate` or "
            "`failed`.",
            ("outcome",),
        )
        self.model_loads = counter(
            "model_loads",
            "Models that hosts were told to load because requests waited for them: `begun` or `refused`.",
            ("model", "outcome"),
        )
        self.model_unloads = counter(
            "model_unloads",
            "Models that hosts were told to unload: for `room`, or because they were `idle`.",
            ("model", "reason"),
        )
        self.hosts = gauge("scheduler_hosts", "Hosts of models that report themselves.")
        self.bad = BadMessages(
            counter(
                "scheduler_bad_messages",
                "Messages over NATS that failed their checks and were ignored: `job`, `heartbeat`, `host`, "
                "`event`, `readers`, `cancel`, `alive` or `served`.",
                ("kind",),
            )
        )
        self.is_leader = gauge(
            "scheduler_is_leader",
            "Partitions of the models that this scheduler leads: 1 while it leads all, 0 while it stands by.",
        )
        self.term = gauge(
            "scheduler_term",
            "Term of the lease: the current one of a leader, the last one of a former leader; the last that "
            "was taken, where it leads several partitions.",
        )
        self.takeovers = counter("scheduler_takeovers", "Times that this scheduler became a leader.")
        self._models: set[str] = set()

    def lead(self, term: int) -> None:
        """This scheduler leads a partition from now on."""
        self.is_leader.inc()
        self.term.set(term)
        self.takeovers.inc()

    def stand_by(self) -> None:
        """Note that this scheduler does not lead that partition any more."""
        self.is_leader.dec()

    def count_lookups(self, outcome: str, prompts: int = 1) -> None:
        self.lookups.labels(outcome).inc(prompts)

    def count_host_command(self, action: CommandHost, *, is_done: bool) -> None:
        """A host was told to load a model, or to unload it."""
        if action.kind == "load":
            self.model_loads.labels(action.model, "begun" if is_done else "refused").inc()
        elif is_done:
            self.model_unloads.labels(action.model, action.why).inc()

    def count_end(self, outcome: str) -> None:
        self.ended.labels(outcome if outcome in _OUTCOMES else "failed").inc()

    def observe(self, cores: Collection[SchedulerCore], now: float) -> None:
        """Bring the gauges up to date.

        Args:
            cores: of the partitions that it leads.
        """
        waiting: Counter[str] = Counter()
        running: Counter[str] = Counter()
        for core in cores:
            waiting.update({model: len(queue) for model, queue in core.queue.models.items()})
            running.update(job.model for job in core.jobs.values() if job.state in _ON_WORKERS)
        self.suspects.set(sum(job.is_suspect for core in cores for job in core.jobs.values()))
        self._keep_models({*waiting, *running})
        for model in self._models:
            self.depth.labels(model).set(waiting[model])
            self.waiting.labels(model).set(waiting[model])
            self.running.labels(model).set(running[model])
        oldest = [core.queue.oldest_enqueued_s() for core in cores]
        self.oldest_wait.set(max((now - at for at in oldest if at is not None and at < now), default=0))
        workers = [worker for core in cores for worker in core.table.workers.values()]
        self.workers.set(len(workers))
        self.hosts.set(max((len(core.hosts) for core in cores), default=0))
        self.free_slots.set(sum(w.free_slots for w in workers if w.admits(Start.NEW)))

    def _keep_models(self, models: set[str]) -> None:
        for model in self._models - models:
            self.depth.remove(model)
            self.waiting.remove(model)
            self.running.remove(model)
        self._models = models
