"""What a cluster may not hold once no client asks for anything."""

from __future__ import annotations

from chaos.aftermath import held, tracebacks

from inferflux.v1 import cluster_pb2


def idle() -> cluster_pb2.GetStatusResponse:
    status = cluster_pb2.GetStatusResponse()
    status.scheduler.leader = "scheduler-0"
    for name in ("worker-0", "worker-1"):
        view = status.scheduler.workers.add()
        view.status.worker_id = name
        view.slots.add(slot=0, state="free")
    return status


def test_an_idle_cluster_holds_nothing() -> None:
    assert held(idle(), workers=2) == []


def test_no_scheduler_is_told() -> None:
    assert held(cluster_pb2.GetStatusResponse(), workers=2) == ["no scheduler answers"]


def test_a_missing_worker_is_told() -> None:
    assert held(idle(), workers=3) == ["2 of 3 workers are there"]


def test_requests_of_any_kind_are_told() -> None:
    status = idle()
    status.scheduler.queued, status.scheduler.running, status.scheduler.parked = 3, 2, 1
    assert held(status, workers=2) == ["3 requests queued", "2 requests running", "1 requests parked"]


def test_slots_cells_and_what_a_worker_says_are_told() -> None:
    status = idle()
    view = status.scheduler.workers[1]
    view.slots.add(slot=1, state="parked", request_id="r", epoch=2)
    view.status.residents.add(request_id="s", epoch=1)
    view.status.kv_cells_reserved = 7
    view.status.kv_transfers.under_way = 2
    assert held(status, workers=2) == [
        "worker-1: slot 1 is parked (r, epoch 2)",
        "worker-1: s is resident, epoch 1",
        "worker-1: 7 KV cells are reserved",
        "worker-1: 2 transfers are under way",
    ]


def test_unexpected_errors_are_found_in_a_log() -> None:
    log = (
        "12:00 [info] ready\n"
        "Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "    raise KeyError(3)\n"
        "KeyError: 3\n"
        "12:01 [info] going on\n"
    )
    assert tracebacks(log) == ["KeyError: 3"]
    assert tracebacks("12:00 [error] engine died\n") == []
