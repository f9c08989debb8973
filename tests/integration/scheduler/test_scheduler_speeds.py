"""The scheduler process and workers of one model whose steps take different times."""

from __future__ import annotations

from pathlib import Path

from harness.scheduler_stage import Stage
from harness.worker import WorkerProcess

from inferflux.v1 import scheduler_pb2

REQUESTS = {f"r{number}" for number in range(16)}


def n_placed(view: scheduler_pb2.WorkerView) -> int:
    return sum(slot.request_id in REQUESTS for slot in view.slots)


async def test_a_worker_that_measures_a_twentieth_of_the_speed_gets_few_requests(
    own_stage: Stage, tmp_path: Path
) -> None:
    workers = {
        name: WorkerProcess(
            tmp_path,
            own_stage.nats.url,
            own_stage.bus,
            name,
            INFERFLUX_WORKER_ENGINE="null",
            INFERFLUX_WORKER_NULL_STEP_S=step_s,
            INFERFLUX_WORKER_SLOTS="32",
        )
        for name, step_s in (("fast", "0.02"), ("slow", "0.4"))
    }
    try:
        for worker in workers.values():
            await worker.start_ready()
        await own_stage.is_quiet(workers=2)
        assert workers["fast"].status is not None
        model = workers["fast"].status.models[0].name
        for name in workers:
            await own_stage.submit(f"first-{name}", model=model, max_tokens=1500)
        first = await own_stage.status(lambda s: s.running == 2)
        assert {sum(slot.state == "running" for slot in view.slots) for view in first.workers} == {1}
        known = await own_stage.status(lambda s: any(v.slowness > 1 for v in s.workers), timeout_s=60.0)
        slowness = {view.status.worker_id: view.slowness for view in known.workers}
        assert slowness["fast"] == 1
        assert slowness["slow"] > 5
        for name in sorted(REQUESTS):
            await own_stage.submit(name, model=model, max_tokens=1000)
        placed = await own_stage.status(lambda s: sum(map(n_placed, s.workers)) == len(REQUESTS))
        share = {view.status.worker_id: n_placed(view) for view in placed.workers}
        assert share["fast"] >= 12
    finally:
        for worker in workers.values():
            worker.kill()
