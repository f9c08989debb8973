"""One request id finds a request in every log, and every metric that is served is in the manual."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.client import Answer, Client, countdown
from harness.traces import Caller

from inferflux.cli.stack import Stack, StackOptions
from tools.reference import metrics

pytestmark = pytest.mark.e2e

REQUEST_ID = "follow-me-1"
WAIT_S = 20.0
# What each service does with a request that is served without trouble, in its own words and order.
STEPS = {
    "policy": ["admits a request", "settles a request"],
    "gateway": ["served an RPC"],
    "scheduler": ["queues a request", "dispatches a request", "a request has finished"],
    "worker-0": ["takes a request up", "a request has finished"],
}


@pytest.fixture(scope="module")
async def stack(demo_model: Path) -> AsyncIterator[Stack]:
    env = {"INFERFLUX_LOG_LEVEL": "debug", "INFERFLUX_LOG_FORMAT": "json"}
    async with Stack(StackOptions(model=demo_model, env=env)) as running:
        yield running


def lines_of(path: Path, request_id: str) -> list[dict[str, Any]]:
    """What one `grep` finds."""
    return [json.loads(line) for line in path.read_text().splitlines() if request_id in line]


def fetch(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        return str(answer.read().decode())


async def events_of(stack: Stack, service: str, caller: Caller) -> list[str]:
    """The events of the request in a service's log, once the last that is expected is there."""
    deadline = time.monotonic() + WAIT_S
    while True:
        lines = lines_of(stack.state_dir.log_file(service), REQUEST_ID)
        events = [line["event"] for line in lines]
        if STEPS[service][-1] in events:
            assert all(line["request_id"] == REQUEST_ID for line in lines)
            assert {line["trace_id"] for line in lines if "trace_id" in line} == {caller.trace_id}
            return events
        assert time.monotonic() < deadline, f"{service}: {events}"
        await asyncio.sleep(0.05)


async def test_one_request_id_is_in_the_log_of_every_service(stack: Stack, client: Client) -> None:
    caller, answer = Caller(), Answer()
    metadata = [*client.metadata(REQUEST_ID), ("traceparent", caller.traceparent)]
    async for response in client.inference.Chat(countdown(9), metadata=metadata):
        answer.add(response.chunk)
    assert answer.terminal is not None
    for service, steps in STEPS.items():
        events = await events_of(stack, service, caller)
        assert [event for event in events if event in steps] == steps, service


async def test_every_metric_that_is_served_is_in_the_manual(stack: Stack) -> None:
    documented = {metrics.exposed_name(metric) for found in metrics.metrics().values() for metric in found}
    addresses = stack.metrics
    assert len(addresses) == len(STEPS)
    for service, address in addresses.items():
        families = re.findall(r"^# TYPE (inferflux_\w+) (\w+)$", fetch(address), re.MULTILINE)
        served = {name for name, kind in families if not name.endswith("_created")}
        assert served, service
        assert served <= documented, service
