"""Whatever is published to a scheduler, it goes on scheduling."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.message import Message
from harness.odd_messages import huge_messages, odd_messages, resident_bytes
from harness.scheduler_stage import Stage
from harness.scheduler_world import make_request
from harness.scripted_worker import MODEL

from inferflux.common.contract import subjects
from inferflux.v1 import scheduler_pb2, tokens_pb2

_MOST_BYTES = 8 << 20
_PER_SUBJECT = 200
_HUGE = 1 << 20
_MOST_GROWTH = 150 << 20


def usual_messages() -> list[tuple[str, Message]]:
    named: dict[str, Any] = {"tenant": "acme", "request_id": "held", "epoch": 1}
    status = scheduler_pb2.WorkerStatus(
        worker_id="w9", incarnation="i9", state=scheduler_pb2.WORKER_STATE_READY, slots=2, kv_cells=100
    )
    status.models.add(name=MODEL, context_length=512)
    status.residents.add(**named)
    status.finished.add(**named)
    ended = scheduler_pb2.WorkerEvent(worker_id="w9", incarnation="i9")
    ended.request_finished.MergeFrom(scheduler_pb2.RequestFinished(**named))
    died = scheduler_pb2.WorkerEvent(worker_id="w9", incarnation="i9")
    died.engine_died.residents.add(**named)
    drain = scheduler_pb2.SchedulerAdminRequest()
    drain.drain.worker_id = "w9"
    fairness = scheduler_pb2.SchedulerAdminRequest()
    fairness.set_fairness.max_timeslice_tokens = 0
    readers = scheduler_pb2.ReaderNotice(gateway_id="g")
    readers.now.requests.add(tenant="acme", request_id="held")
    return [
        (subjects.worker_status("w9"), status),
        (subjects.SCHEDULER_EVENTS, ended),
        (subjects.SCHEDULER_EVENTS, died),
        (subjects.cancel("acme", "other"), scheduler_pb2.CancelNotice(tenant="acme", request_id="other")),
        (subjects.SCHEDULER_ADMIN, drain),
        (subjects.SCHEDULER_ADMIN, fairness),
        (subjects.SCHEDULER_READERS, readers),
        (subjects.SCHEDULER_STATUS, scheduler_pb2.SchedulerStatusRequest()),
        (subjects.tokens("acme", "held"), tokens_pb2.TokenChunk(request_id="held", epoch=2, offset=1)),
    ]


async def test_a_scheduler_goes_on_whatever_is_published_to_it(theatre: Stage) -> None:
    rng, stage = Random(10), theatre
    scheduler = await stage.add_scheduler("fuzzed")
    worker = await stage.add_worker("w1", slots=_PER_SUBJECT)
    await stage.submit("first")
    await worker.has("first")
    await worker.emit("first", 1, is_last=True)
    before = resident_bytes(scheduler.process.pid)
    for subject, usual in usual_messages():
        payloads = [*odd_messages(rng, usual, _PER_SUBJECT), *huge_messages(usual, _HUGE)]
        for payload in payloads:
            await stage.bus.publish(subject, payload)
        await stage.bus.flush()
    job = make_request("odd", model=MODEL)
    for i, payload in enumerate(odd_messages(rng, job, _PER_SUBJECT)):
        if len(payload) < _MOST_BYTES:  # NATS takes no larger ones
            await stage.enqueue(f"odd{i}", MODEL, payload)
    # Jobs that only look odd are served; what remains of them is not this test's.
    await stage.submit("second", priority=100)
    await worker.has("second", timeout_s=30)
    await worker.emit("second", 2, is_last=True)
    assert (await stage.read("second")).token_ids == [0, 1]
    assert await scheduler.metric("inferflux_scheduler_takeovers_total") == 1, "its core raised"
    assert scheduler.process.poll() is None
    assert resident_bytes(scheduler.process.pid) - before < _MOST_GROWTH
