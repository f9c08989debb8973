"""Schedulers divide the partitions of the models, and move them as they come and go, without losing a job."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
from harness.scheduler_stage import Stage
from harness.scripted_worker import ScriptedWorker

from inferflux.common.bus.scheduler_status import ask_schedulers, missing, together
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.partitions import Partition, divide
from inferflux.scheduler.core.lease.ownership import owner_of
from inferflux.v1 import scheduler_pb2

COUNT = 4
ENV = {"INFERFLUX_SCHEDULER_PARTITIONS": str(COUNT), "INFERFLUX_SCHEDULER_LEASE_S": "1.0"}
LIMIT_S = 30.0


def model_of(partition: Partition) -> str:
    return next(name for i in itertools.count() if partition.has(name := f"model-{i}"))


async def until_led_by(stage: Stage, names: Collection[str]) -> list[scheduler_pb2.SchedulerStatus]:
    """Return what the leaders say once each partition is led by the one of these that is to lead it."""
    expected = {each.name: owner_of(each.name, tuple(sorted(names))) for each in divide(COUNT)}
    seen: dict[str, str] = {}
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    statuses = await ask_schedulers(stage.bus, timeout_s=0.3)
                except InferFluxError:
                    statuses = []
                seen = {status.partition: status.leader for status in statuses}
                if seen == expected:
                    return statuses
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"led by {seen}, not {expected}") from None


@asynccontextmanager
async def served(stage: Stage, workers: Collection[ScriptedWorker]) -> AsyncIterator[list[str]]:
    """Requests for every worker's model, one after the other, answered at once; yields the answered ids."""
    answered: list[str] = []

    async def ask(worker: ScriptedWorker) -> None:
        for number in itertools.count():
            name = f"{worker.worker_id}-{number}"
            await stage.submit(name, model=worker.model)
            await worker.has(name, timeout_s=LIMIT_S)
            await worker.emit(name, 1, is_last=True)
            answered.append(name)
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(ask(worker)) for worker in workers]
    try:
        yield answered
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended


@pytest.mark.timeout(180)
async def test_partitions_move_as_schedulers_join_and_leave_and_no_job_is_lost(theatre: Stage) -> None:
    workers = [
        await theatre.add_worker(f"w{partition.index}", model=model_of(partition))
        for partition in divide(COUNT)
    ]
    await theatre.add_scheduler("s0", **ENV)
    terms = {status.partition: [status.term] for status in await until_led_by(theatre, ["s0"])}
    async with served(theatre, workers) as answered:
        for joined in (["s0", "s1"], ["s0", "s1", "s2"]):
            await theatre.add_scheduler(joined[-1], **ENV)
            for status in await until_led_by(theatre, joined):
                terms[status.partition].append(status.term)
        theatre.standbys["s1"].signal(signal.SIGKILL)
        for status in await until_led_by(theatre, ["s0", "s2"]):
            terms[status.partition].append(status.term)
        theatre.standbys["s2"].signal(signal.SIGTERM)
        for status in await until_led_by(theatre, ["s0"]):
            terms[status.partition].append(status.term)
    assert len(answered) > len(workers)
    for name in answered:
        assert (await theatre.read(name)).outcome == "stop"
    assert all(values == sorted(values) for values in terms.values())
    for worker in workers:
        assert worker.batch_terms == sorted(worker.batch_terms)


async def test_each_partition_has_its_queue_and_the_status_has_all_of_them(theatre: Stage) -> None:
    for name in ("s0", "s1"):
        await theatre.add_scheduler(name, **ENV)
    await until_led_by(theatre, ["s0", "s1"])
    for partition in divide(COUNT):
        for number in range(partition.index + 1):
            await theatre.submit(f"{partition.index}-{number}", model=model_of(partition))
    async with asyncio.timeout(LIMIT_S):
        while True:
            statuses = await ask_schedulers(theatre.bus, timeout_s=1.0)
            is_ready = not together(statuses).not_ready
            if is_ready and [status.queued for status in statuses] == [1, 2, 3, 4]:
                break
            await asyncio.sleep(0.05)
    assert together(statuses).queued == 10
    assert not missing(statuses)
    assert missing(statuses[1:]) == ["0-of-4"]
    assert "0-of-4" in together(statuses[1:]).not_ready


async def test_another_number_of_partitions_ends_a_scheduler_naming_the_variable(theatre: Stage) -> None:
    await theatre.add_scheduler("s0", **ENV)
    await until_led_by(theatre, ["s0"])
    command = [sys.executable, "-m", "inferflux.scheduler"]
    ended = await asyncio.to_thread(
        subprocess.run, command, env=theatre.env, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert "INFERFLUX_SCHEDULER_PARTITIONS" in ended.stderr.splitlines()[-1]


async def test_what_a_tenant_is_served_in_one_partition_counts_in_the_others(theatre: Stage) -> None:
    for name in ("s0", "s1"):
        await theatre.add_scheduler(name, **ENV, INFERFLUX_SCHEDULER_POLICY="fair")
    await until_led_by(theatre, ["s0", "s1"])
    here, there, *_ = divide(COUNT)
    workers = [await theatre.add_worker(f"w{each.index}", model=model_of(each)) for each in (here, there)]

    async def serve(worker: ScriptedWorker, name: str, tenant: str) -> None:
        await theatre.submit(name, model=worker.model, tenant=tenant)
        await worker.has(name, timeout_s=LIMIT_S)
        await worker.emit(name, 1, is_last=True)

    bucket = theatre.bus.key_value(subjects.SCHEDULERS_BUCKET)
    await serve(workers[1], "other", "other")  # beside it: what is kept is what a tenant was served more
    async with asyncio.timeout(LIMIT_S):
        for number in itertools.count():
            await serve(workers[0], f"mine-{number}", "mine")
            entry = await bucket.get(subjects.tenant_shares(there))
            if entry is not None and json.loads(entry.value).get("mine", 0) > 0:
                break
            await asyncio.sleep(0.1)
