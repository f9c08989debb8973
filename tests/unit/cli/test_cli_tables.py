"""What status and models look like."""

from __future__ import annotations

from rich.console import Console, RenderableType

from inferflux.cli.tables import models_table, status_view
from inferflux.v1 import cluster_pb2, model_pb2, scheduler_pb2

CARD = model_pb2.ModelCard(
    name="demo",
    digest="abcdef0123456789",
    context_length=2048,
    architecture="llama",
    parameters=3_120_000,
    size_bytes=3_500_000,
    vocabulary_size=2048,
)


def shown(view: RenderableType) -> str:
    console = Console(width=160, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def worker_view(taken: int) -> scheduler_pb2.WorkerView:
    slots = [
        scheduler_pb2.SlotStatus(slot=index, state="running" if index < taken else "free")
        for index in range(4)
    ]
    status = scheduler_pb2.WorkerStatus(
        worker_id="worker-0",
        state=scheduler_pb2.WORKER_STATE_READY,
        models=[CARD],
        slots=4,
        kv_cells=8192,
        kv_cells_reserved=1234,
        decode_tokens_per_s=210.4,
    )
    return scheduler_pb2.WorkerView(status=status, slots=slots, heartbeat_age_ms=400)


def test_a_model_is_a_row_with_sizes_for_people() -> None:
    text = shown(models_table([model_pb2.Model(card=CARD, workers=1)]))
    for part in ("demo", "llama", "3.12 M", "3.34 MiB", "2,048", "abcdef01"):
        assert part in text


def test_status_shows_services_queue_and_slots() -> None:
    status = cluster_pb2.GetStatusResponse(
        services=[
            cluster_pb2.ServiceStatus(name="gateway", is_ready=True, detail="127.0.0.1:1"),
            cluster_pb2.ServiceStatus(name="redis", is_ready=False, detail="connection [refused]"),
        ],
        scheduler=scheduler_pb2.SchedulerStatus(
            workers=[worker_view(taken=3)], queued=2, running=3, oldest_wait_ms=1500
        ),
    )
    text = shown(status_view(status))
    assert "connection [refused]" in text
    assert "3 running · 2 queued, the oldest for 1.5 s" in text
    assert "■■■■■■□□ 3/4" in text
    assert "15%" in text
    assert "210/s" in text


def test_a_worker_row_fits_a_narrow_terminal() -> None:
    status = cluster_pb2.GetStatusResponse(
        scheduler=scheduler_pb2.SchedulerStatus(workers=[worker_view(taken=4)])
    )
    console = Console(width=80, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(status_view(status))
    row = next(line for line in capture.get().splitlines() if line.startswith("worker-0"))
    for part in ("ready", "demo", "■■■■■■■■ 4/4", "15%", "210/s", "0.4 s"):
        assert part in row


def test_status_says_when_the_scheduler_is_silent() -> None:
    assert "the scheduler does not answer" in shown(status_view(cluster_pb2.GetStatusResponse()))


def test_status_says_when_there_is_no_worker() -> None:
    status = cluster_pb2.GetStatusResponse(scheduler=scheduler_pb2.SchedulerStatus())
    assert "no worker has announced itself" in shown(status_view(status))
