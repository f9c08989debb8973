"""The containers' health check against a real probe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from inferflux.cli.stack.servers import free_port
from inferflux.common.process import healthcheck
from inferflux.common.process.probe import Probe


@pytest.fixture
def probe() -> Iterator[Probe]:
    serving = Probe("127.0.0.1:0", role="policy", registry=CollectorRegistry())
    yield serving
    serving.close()


def run(metrics_listen: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", healthcheck.__name__],
        env=os.environ | {"INFERFLUX_METRICS_LISTEN": metrics_listen},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_passes_exactly_while_the_process_is_ready(probe: Probe) -> None:
    listen = f"127.0.0.1:{probe.port}"
    assert run(listen).returncode == 1
    probe.set_ready("store", ok=True)
    assert run(listen).returncode == 0
    probe.set_ready("store", ok=False, detail="Redis does not answer")
    failed = run(listen)
    assert failed.returncode == 1
    assert "Redis does not answer" in failed.stderr


@pytest.mark.parametrize("listen", ["", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:http"])
def test_an_address_without_a_port_is_named(listen: str) -> None:
    failed = run(listen)
    assert failed.returncode == 1
    assert "INFERFLUX_METRICS_LISTEN" in failed.stderr


def test_a_port_without_a_listener_fails_in_a_line() -> None:
    failed = run(f"127.0.0.1:{free_port()}")
    assert failed.returncode == 1
    assert "no answer from port" in failed.stderr
    assert "Traceback" not in failed.stderr
