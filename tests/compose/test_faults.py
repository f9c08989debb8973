"""Faults over the containers' network while clients are served: nothing is lost, repeated, or different."""

from __future__ import annotations

import asyncio

import pytest
from harness.client import Client

from compose.engine import SERVICES, Compose, Container, leading, run
from compose.faults import Fault, inflict
from compose.load import Answers, Load
from compose.notes import Notes

# As many as both workers have slots.
STREAMS = 8
# Longer than a lease and a heartbeat's limit, shorter than the limit for a model without workers.
FAULT_S = 5.0
HEALTHY_LIMIT_S = 90.0
END_LIMIT_S = 120.0


async def target(compose: Compose, service: str) -> Container:
    """Whom it hits: of the schedulers the one that leads."""
    containers = await compose.containers(service)
    return await leading(containers) if service == "scheduler" else containers[0]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", Fault, ids=lambda f: f.value)
async def test_no_client_notices(
    fault: Fault, service: str, stack: Compose, client: Client, expected: Answers, notes: Notes
) -> None:
    container = await target(stack, service)
    load = Load(client, expected, f"{fault.value}-{service}")
    async with load.running(STREAMS):
        await load.until_done(STREAMS, END_LIMIT_S)
        hostname = container.id if service == "worker" else ""
        await inflict(fault, stack, container, FAULT_S, lambda: load.until_answering(END_LIMIT_S, hostname))
        healthy_s = await container.until_healthy(HEALTHY_LIMIT_S)
        await load.until_done(2 * STREAMS, END_LIMIT_S)
    notes.add(f"{fault.value} {service}: {load.check()}; healthy {healthy_s:.1f} s after it")
    await client.until_idle()


@pytest.mark.timeout(600)
async def test_the_gateway_is_cut_off_for_twenty_seconds(
    stack: Compose, client: Client, expected: Answers, notes: Notes
) -> None:
    container = await target(stack, "gateway")
    load = Load(client, expected, "long-cut")
    async with load.running(10):
        await load.until_done(10, END_LIMIT_S)
        await inflict(Fault.CUT, stack, container, 20.0, lambda: load.until_answering(END_LIMIT_S))
        await load.until_done(20, END_LIMIT_S)
    notes.add(f"cut gateway for 20 s, 10 streams: {load.check()}")
    await client.until_idle()


@pytest.mark.timeout(600)
async def test_everything_is_killed_at_once(
    stack: Compose, client: Client, expected: Answers, notes: Notes
) -> None:
    load = Load(client, expected, "power-cut")
    async with load.running(STREAMS):
        await load.until_done(STREAMS, END_LIMIT_S)
        containers = await stack.containers()
        await load.until_answering(END_LIMIT_S)
        await run("docker", "kill", *(container.id for container in containers))
        up_s = await stack.up()
        await load.until_done(2 * STREAMS, END_LIMIT_S)
    notes.add(f"everything killed: {load.check()}; up again in {up_s:.1f} s")
    await client.until_idle()


async def test_every_container_is_as_it_was(stack: Compose) -> None:
    containers = await stack.containers()
    await asyncio.gather(*(container.until_healthy(HEALTHY_LIMIT_S) for container in containers))
    assert len(containers) == len(SERVICES) + 2
