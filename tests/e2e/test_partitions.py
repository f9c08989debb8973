"""Partitions of the models in a whole stack, under the permissions that its processes have."""

from __future__ import annotations

import asyncio

from inferflux.cli.reach.client import Client
from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import generation_pb2

COUNT = 4
LIMIT_S = 60.0


async def test_two_schedulers_divide_the_partitions_and_the_status_has_all_of_them() -> None:
    options = StackOptions(null_workers=1, schedulers=2, partitions=COUNT)
    async with Stack(options) as stack, Client(stack.target) as client:
        async with asyncio.timeout(LIMIT_S):
            while True:
                status = await client.status()
                if len(status.partitions) == COUNT and not status.scheduler.not_ready:
                    break
                await asyncio.sleep(0.2)
        assert {each.leader for each in status.partitions} <= {"scheduler-0", "scheduler-1"}
        assert [each.partition for each in status.partitions] == [f"{i}-of-{COUNT}" for i in range(COUNT)]
        assert len(status.scheduler.workers) == 1
        params = generation_pb2.GenerationParams(max_tokens=4)
        chunks = [chunk async for chunk in client.generate("1 2 3", model=stack.model_name, params=params)]
        assert chunks[-1].HasField("finished")
