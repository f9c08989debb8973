"""What a worker that has a role says of its health while it starts, serves and drains."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from harness.http_client import HttpClient
from harness.worker import WorkerProcess, batch_item

from inferflux.cli.stack.servers import free_port
from inferflux.common.bus import Bus

_POLL_S = 0.01


async def _told(port: int, path: str) -> tuple[int, dict[str, str]]:
    """Code, and the body but for its conditions; (0, {}) while nothing listens."""
    try:
        answer = await HttpClient(port, "").get(path)
    except OSError:
        return 0, {}
    body = json.loads(answer.body)
    return answer.status, {name: body[name] for name in ("status", "role", "reason")}


async def _until_ready_as(port: int, code: int, body: dict[str, str]) -> None:
    """Return once /readyz answers so."""
    async with asyncio.timeout(60):
        while await _told(port, "/readyz") != (code, body):
            await asyncio.sleep(_POLL_S)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_says_its_role_and_why_it_is_not_ready(
    role: str, nats_url: str, bus: Bus, tmp_path: Path
) -> None:
    port = free_port()
    settings = {
        "INFERFLUX_ROLE": role,
        "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{port}",
        "INFERFLUX_WORKER_ENGINE": "null",
        "INFERFLUX_WORKER_NULL_STEP_S": "0.05",
    }
    worker = WorkerProcess(tmp_path, nats_url, bus, f"health-{role}", **settings)

    try:
        await worker.start()
        await _until_ready_as(
            port, 503, {"status": "not_ready", "role": role, "reason": "no model backend loaded"}
        )
        assert await _told(port, "/livez") == (200, {"status": "ok", "role": role, "reason": ""})
        await _until_ready_as(port, 200, {"status": "ok", "role": role, "reason": ""})
        assert await _told(port, "/healthz") == (200, {"status": "ok", "role": role, "reason": ""})
        await worker.until(lambda: worker.status is not None)
        await worker.submit(batch_item("running", max_tokens=100))
        worker.send(signal.SIGTERM)
        await _until_ready_as(port, 503, {"status": "not_ready", "role": role, "reason": "draining"})
        assert await _told(port, "/livez") == (200, {"status": "ok", "role": role, "reason": ""})
    finally:
        worker.kill()


@pytest.mark.parametrize(("shm_bytes", "is_ready"), [("1000000000", True), ("0", False)])
async def test_a_decode_worker_is_ready_once_it_exchanges_state_with_others(
    shm_bytes: str, is_ready: bool, nats_url: str, bus: Bus, tmp_path: Path
) -> None:
    port = free_port()
    settings = {
        "INFERFLUX_ROLE": "decode",
        "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{port}",
        "INFERFLUX_WORKER_SHM_BYTES": shm_bytes,
        "INFERFLUX_WORKER_THREADS": "1",
    }
    worker = WorkerProcess(tmp_path, nats_url, bus, f"warm-{shm_bytes}", **settings)
    try:
        await worker.start_ready()
        if is_ready:
            await _until_ready_as(port, 200, {"status": "ok", "role": "decode", "reason": ""})
        else:
            cold = {"status": "not_ready", "role": "decode", "reason": "decode pool not ready"}
            await _until_ready_as(port, 503, cold)
        await worker.until(
            lambda: worker.status is not None and worker.status.HasField("kv_source") == is_ready
        )
    finally:
        worker.kill()
