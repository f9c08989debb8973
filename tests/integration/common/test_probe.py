"""The probe over real HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Counter

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.process.probe import Probe

ALIVE = '{"status": "ok", "role": "gateway", "reason": ""}\n'


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def probe(registry: CollectorRegistry) -> Iterator[Probe]:
    probe = Probe("127.0.0.1:0", role="gateway", registry=registry)
    yield probe
    probe.close()


def get(probe: Probe, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", probe.port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_it_is_alive_at_once_and_ready_when_every_condition_is_met(probe: Probe) -> None:
    assert get(probe, "/livez") == (200, ALIVE)
    assert get(probe, "/readyz")[0] == 503
    probe.set_ready("nats", True)
    probe.set_ready("model", False, "loading demo.gguf")
    status, body = get(probe, "/readyz")
    assert status == 503
    assert json.loads(body)["conditions"]["model"] == {"ok": False, "detail": "loading demo.gguf"}
    assert not probe.is_ready
    probe.set_ready("model", True)
    assert get(probe, "/readyz?verbose")[0] == 200
    assert probe.is_ready


def test_strangers_are_not_told_why(probe: Probe) -> None:
    probe.set_ready("queue", False, "it does not write", why="write /data/1.blk: no space left")
    assert probe.missing == "queue: it does not write: write /data/1.blk: no space left"
    for path in ("/readyz", "/healthz"):
        told = get(probe, path)[1]
        assert "it does not write" in told
        assert "/data" not in told
    probe.set_ready("queue", False, "it does not write")
    assert probe.missing == "queue: it does not write"


def test_it_is_degraded_while_it_is_not_ready_or_something_else_is_wrong(probe: Probe) -> None:
    def health() -> tuple[str, str]:
        status, body = get(probe, "/healthz")
        told = json.loads(body)
        assert status == 200
        return told["status"], told["reason"]

    assert health() == ("degraded", "starting")
    probe.set_ready("nats", True)
    assert health() == ("ok", "")
    probe.set_warning("scheduler", "it does not answer")
    assert health() == ("degraded", "scheduler: it does not answer")
    assert probe.is_ready
    probe.set_ready("nats", False, "connection lost")
    assert health() == ("degraded", "nats: connection lost; scheduler: it does not answer")
    assert json.loads(get(probe, "/readyz")[1])["not_met"] == ["nats"]
    probe.set_ready("model", True)
    assert probe.are_met(but=("nats",))
    probe.set_ready("nats", True)
    probe.set_warning("scheduler", "")
    assert health() == ("ok", "")


def test_each_answer_names_the_role_and_what_is_wrong_in_short(probe: Probe) -> None:
    def readiness() -> tuple[int, str, str]:
        status, body = get(probe, "/readyz")
        told = json.loads(body)
        assert told["role"] == json.loads(get(probe, "/healthz")[1])["role"] == "gateway"
        return status, told["status"], told["reason"]

    assert readiness() == (503, "not_ready", "starting")
    probe.set_ready("models", False, "no model is ready: 1 loading", reason="no model backend loaded")
    probe.set_ready("nats", False, "connection lost")
    probe.set_ready("policy", False)
    assert readiness() == (503, "not_ready", "no model backend loaded; nats: connection lost; policy")
    probe.set_ready("nats", True)
    probe.set_ready("policy", True)
    probe.set_warning("pools", "1 of 2 workers are ready", reason="decode pool not ready")
    assert readiness() == (503, "not_ready", "no model backend loaded")
    probe.set_ready("models", True)
    assert readiness() == (200, "degraded", "decode pool not ready")
    probe.set_warning("pools", "")
    assert readiness() == (200, "ok", "")


def test_metrics_are_served(probe: Probe, registry: CollectorRegistry) -> None:
    Counter("inferflux_things", "Things.", registry=registry).inc(3)
    status, body = get(probe, "/metrics")
    assert status == 200
    assert "inferflux_things_total 3.0" in body


def test_other_paths_say_what_there_is(probe: Probe) -> None:
    status, body = get(probe, "/")
    assert status == 404
    assert "/metrics" in body


def test_many_ask_at_once(probe: Probe) -> None:
    probe.set_ready("x", True)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(get(probe, "/readyz")[0])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20


def test_a_client_that_sends_rubbish_or_nothing_harms_no_other(
    probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    for rubbish in (b"\x00\xff\r\n\r\n", b"", b"GET"):
        with socket.create_connection(("127.0.0.1", probe.port)) as client:
            client.sendall(rubbish)
    assert get(probe, "/livez")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_connections_held_open_are_bounded_and_keep_no_client_out(probe: Probe) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", probe.port), timeout=10))
            for _ in range(200)
        ]
        for client in held:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /livez HTTP/1.1\r\n")
            assert threading.active_count() - threads <= 40
        assert get(probe, "/livez") == (200, ALIVE)
        assert probe.n_connections <= 32
        assert ends(held[0])


def ends(client: socket.socket) -> bool:
    """Whether the server ends this connection."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_taken_port_names_the_address_and_the_variable(probe: Probe) -> None:
    with pytest.raises(Unavailable) as caught:
        Probe(f"127.0.0.1:{probe.port}", role="gateway")
    assert f"127.0.0.1:{probe.port}" in caught.value.message
    assert "INFERFLUX_METRICS_LISTEN" in caught.value.message


@pytest.mark.parametrize("listen", ["", "localhost", "127.0.0.1:x", "127.0.0.1:70000", "9090"])
def test_an_address_that_is_none_names_the_variable(listen: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Probe(listen, role="gateway")
    assert caught.value.field == "INFERFLUX_METRICS_LISTEN"


def test_a_closed_probe_frees_its_port() -> None:
    first = Probe("127.0.0.1:0", role="gateway")
    address = f"127.0.0.1:{first.port}"
    assert get(first, "/livez")[0] == 200
    first.close()
    Probe(address, role="gateway").close()
