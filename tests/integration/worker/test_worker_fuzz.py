"""Whatever is published to a worker, its engine lives and serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import cast

import pytest
from google.protobuf.message import DecodeError, Message
from harness.odd_messages import huge_messages, odd_messages, resident_bytes
from harness.servers import ServerProcess
from harness.worker import WorkerProcess, batch_item, read_to_end, resume_item, token_ids

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.defects import PlanningHealth
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.actions import Action, Dispatch
from inferflux.scheduler.edge.dispatch import dispatch
from inferflux.scheduler.edge.guard import GuardedCore
from inferflux.v1 import scheduler_pb2, worker_pb2

_PER_SUBJECT = 200
_HUGE = 1 << 20
_MOST_GROWTH = 150 << 20


def usual_messages(worker_id: str, incarnation: str) -> list[tuple[str, Message]]:
    prefill = worker_pb2.RequestBatch(
        batch_id="b",
        incarnation=incarnation,
        phase=worker_pb2.PHASE_PREFILL,
        items=[batch_item("odd", max_tokens=2, temperature=0.8, logit_bias={5: 1.0}, stop=("x",))],
        deschedule=[worker_pb2.Deschedule(tenant="t", request_id="odd", epoch=1)],
    )
    decode = worker_pb2.RequestBatch(
        batch_id="b", incarnation=incarnation, phase=worker_pb2.PHASE_DECODE, items=[resume_item("odd")]
    )
    drop = worker_pb2.WorkerCommand()
    drop.drop.tenant, drop.drop.request_id, drop.drop.epoch = "t", "odd", 1
    end = worker_pb2.WorkerCommand(deschedule=prefill.deschedule[0])
    return [
        (subjects.worker_batch(worker_id), prefill),
        (subjects.worker_batch(worker_id), decode),
        (subjects.worker_command(worker_id), drop),
        (subjects.worker_command(worker_id), end),
        (subjects.cancel("t", "odd"), scheduler_pb2.CancelNotice(tenant="t", request_id="odd")),
    ]


def is_harmless(payload: bytes) -> bool:
    """Whether it is neither a valid command to drain nor of a term that rules out those of this test."""
    for kind in (worker_pb2.WorkerCommand, worker_pb2.RequestBatch):
        message = kind()
        try:
            message.ParseFromString(payload)
        except DecodeError:
            continue
        if message.term or (isinstance(message, worker_pb2.WorkerCommand) and message.HasField("drain")):
            return False
    return True


@pytest.fixture
async def worker(private_nats: ServerProcess, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    made = WorkerProcess(tmp_path, private_nats.url, bus, "fuzzed")
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()
        await bus.close()


async def test_a_worker_goes_on_whatever_is_published_to_it(worker: WorkerProcess) -> None:
    rng = Random(11)
    assert worker.process is not None
    assert worker.status is not None
    engine = worker.engine_pid()
    stream = await worker.read("before")
    await worker.submit(batch_item("before", max_tokens=8))
    expected = token_ids(await read_to_end(stream))
    sizes = [resident_bytes(pid) for pid in (worker.process.pid, engine)]
    for subject, usual in usual_messages(worker.worker_id, worker.status.incarnation):
        for payload in [*odd_messages(rng, usual, _PER_SUBJECT), *huge_messages(usual, _HUGE)]:
            if is_harmless(payload):
                await worker.bus.publish(subject, payload)
        await worker.bus.flush()
    await worker.until(lambda: worker.status is not None and not worker.status.residents)
    stream = await worker.read("after")
    answer = await worker.submit(batch_item("after", max_tokens=8))
    assert list(answer.accepted_request_ids) == ["after"]
    assert token_ids(await read_to_end(stream)) == expected
    assert worker.engine_pid() == engine, "the engine died"
    after = [resident_bytes(pid) for pid in (worker.process.pid, engine)]
    assert max(b - a for a, b in zip(sizes, after, strict=True)) < _MOST_GROWTH


class Answers:
    """A scheduler's core that stores what it is told of its batches."""

    handled = None

    def __init__(self) -> None:
        self.unanswered: list[tuple[str, bool]] = []

    def handle_nothing(self) -> None: ...

    def on_batch_unanswered(self, batch_id: str, *, is_delivered: bool, now: float) -> list[Action]:
        assert now
        self.unanswered.append((batch_id, is_delivered))
        return []


async def test_a_batch_that_cannot_be_is_answered_with_an_error_and_the_scheduler_goes_on(
    worker: WorkerProcess,
) -> None:
    bad = worker_pb2.RequestBatch(batch_id="b" * 129)
    with pytest.raises(InvalidArgument) as caught:
        await worker.bus.request(
            subjects.worker_batch(worker.worker_id), bad.SerializeToString(), timeout_s=30
        )
    assert (caught.value.reason, "batch_id" in caught.value.message) == ("BAD_BATCH", True)
    answers = Answers()
    guard = GuardedCore(cast("SchedulerCore", answers), lambda _todo: None, monotonic, PlanningHealth())
    await dispatch(worker.bus, Dispatch(worker.worker_id, bad, "inferflux-demo", (), ()), guard, timeout_s=30)
    assert guard.defects == []
    assert answers.unanswered == [(bad.batch_id, True)]
