"""A process of many workers with null engines: each is a worker of its own on the bus."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
from harness.worker import WorkerProcess, batch_item, read_to_end

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import subjects
from inferflux.v1 import scheduler_pb2, worker_pb2
from inferflux.worker.null.answers import answer_text

MANY = 30


async def test_many_workers_in_one_process_serve_and_leave_each_by_itself(
    nats_url: str, bus: Bus, tmp_path: Path
) -> None:
    seen: dict[str, scheduler_pb2.WorkerStatus] = {}
    left: set[str] = set()

    async def on_status(message: Message) -> None:
        status = scheduler_pb2.WorkerStatus.FromString(message.data)
        if status.worker_id.startswith("many_"):
            seen[status.worker_id] = status

    async def on_event(message: Message) -> None:
        event = scheduler_pb2.WorkerEvent.FromString(message.data)
        if event.HasField("worker_left"):
            left.add(event.worker_id)

    await bus.serve(subjects.WORKER_STATUS_ALL, on_status)
    await bus.serve(subjects.SCHEDULER_EVENTS, on_event)
    settings = {
        "INFERFLUX_WORKER_ENGINE": "null",
        "INFERFLUX_WORKER_NULL_WORKERS": str(MANY),
        "INFERFLUX_WORKER_NULL_STEP_S": "0.005",
    }
    # Its harness listens to one of them.
    process = WorkerProcess(tmp_path, nats_url, bus, "many", **settings)
    await process.start()
    process.worker_id = "many_0"
    await bus.serve(subjects.worker_status("many_0"), process._on_status)
    ready = scheduler_pb2.WORKER_STATE_READY
    try:
        await process.until(
            lambda: len(seen) == MANY and all(status.state == ready for status in seen.values())
        )
        assert len({status.incarnation for status in seen.values()}) == MANY
        assert psutil.Process(process.process.pid if process.process else 0).children() != []  # its witness
        answers = {}
        for number in range(MANY):
            worker_id = f"many_{number}"
            name = f"null-{number}"
            stream = await process.read(name)
            item = batch_item(name, seed=number, max_tokens=12)
            batch = worker_pb2.RequestBatch(
                batch_id="b",
                incarnation=seen[worker_id].incarnation,
                phase=worker_pb2.PHASE_PREFILL,
                items=[item],
            )
            data = await bus.request(
                subjects.worker_batch(worker_id), batch.SerializeToString(), timeout_s=10.0
            )
            assert worker_pb2.BatchAccepted.FromString(data).accepted_request_ids == [name]
            chunks = await read_to_end(stream)
            answers[number] = "".join(chunk.text for chunk in chunks)
        vocabulary_size = seen["many_0"].models[0].vocabulary_size
        assert answers == {n: answer_text(n, 12, vocabulary_size) for n in range(MANY)}
        process.send(signal.SIGTERM)
        assert await process.wait() == 0
        await process.until(lambda: len(left) == MANY)
    finally:
        process.kill()
