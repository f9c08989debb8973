"""What status and models look like."""

from __future__ import annotations

import re
import time
from typing import Any

from rich.console import Console, RenderableType

from inferflux.cli.reach.statuses import joined_status
from inferflux.cli.show.cache_tables import cache_view
from inferflux.cli.show.model_tables import models_table
from inferflux.cli.show.rows import make_table
from inferflux.cli.show.status_tables import fairness_view, status_view
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


def worker_view(running: int, *, parked: int = 0, swapped: int = 0) -> scheduler_pb2.WorkerView:
    """A worker with four slots."""
    slots = [
        scheduler_pb2.SlotStatus(slot=index, state="running" if index < running else "free")
        for index in range(4)
    ]
    residences = [scheduler_pb2.RESIDENCE_PARKED] * parked + [scheduler_pb2.RESIDENCE_SWAPPED] * swapped
    status = scheduler_pb2.WorkerStatus(
        worker_id="worker-0",
        state=scheduler_pb2.WORKER_STATE_READY,
        models=[CARD],
        slots=4,
        kv_cells=8192,
        kv_cells_used=1234,
        decode_tokens_per_s=210.4,
        residents=[scheduler_pb2.ResidentRequest(residence=residence) for residence in residences],
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
            workers=[worker_view(running=3)], queued=2, running=3, oldest_wait_ms=1500
        ),
    )
    text = shown(status_view(status))
    assert "connection [refused]" in text
    assert "3 running · 2 queued, the oldest for 1.5 s" in text
    assert "■■■■■■□□ 3/4" in text
    assert "15%" in text
    assert "210/s" in text


def test_status_says_which_worker_counts_as_slower() -> None:
    view = worker_view(running=3)
    for slowness, is_said in ((0.0, False), (1.0, False), (9.25, True)):
        view.slowness = slowness
        status = cluster_pb2.GetStatusResponse(scheduler=scheduler_pb2.SchedulerStatus(workers=[view]))
        said = "worker-0: counts as 9.25 times slower than the fastest of its model"
        assert (said in shown(status_view(status))) == is_said


def test_status_shows_what_waits_to_resume_on_workers() -> None:
    scheduler = scheduler_pb2.SchedulerStatus(
        workers=[worker_view(running=4, parked=2, swapped=1)], queued=5, running=4, parked=3
    )
    text = shown(status_view(cluster_pb2.GetStatusResponse(scheduler=scheduler)))
    assert "4 running · 5 queued · 3 parked, the oldest" in text
    assert "■■■■■■■■ 4/4  2, 1 swapped" in text


def test_a_fleet_too_large_for_its_slots_is_shown_without_them() -> None:
    view = worker_view(running=2)
    del view.slots[:]
    status = cluster_pb2.GetStatusResponse(scheduler=scheduler_pb2.SchedulerStatus(workers=[view]))
    assert "?/4" in shown(status_view(status))


def test_status_shows_who_leads_and_by_what_rules() -> None:
    fairness = scheduler_pb2.Fairness(
        enable_preemption=True, high_priority_threshold=5, max_timeslice_tokens=64
    )
    scheduler = scheduler_pb2.SchedulerStatus(
        leader="scheduler-0", term=17, policy="priority", fairness=fairness
    )
    text = shown(status_view(cluster_pb2.GetStatusResponse(scheduler=scheduler)))
    assert (
        "led by scheduler-0, term 17 · policy priority · preemption from priority 5 · timeslice 64 tokens"
        in text
    )
    scheduler.fairness.CopyFrom(scheduler_pb2.Fairness())
    text = shown(status_view(cluster_pb2.GetStatusResponse(scheduler=scheduler)))
    assert "policy priority · no preemption · no timeslice" in text


def test_fairness_is_told_in_words() -> None:
    on = scheduler_pb2.Fairness(enable_preemption=True, high_priority_threshold=-3, max_timeslice_tokens=2000)
    text = shown(fairness_view(on))
    for row in (r"preemption +on", r"high priority +-3 and above", r"timeslice +2,000 tokens"):
        assert re.search(row, text), row
    off = shown(fairness_view(scheduler_pb2.Fairness()))
    assert re.search(r"preemption +off", off)
    assert re.search(r"timeslice +off", off)


def test_paragraphs_have_the_first_heading_once() -> None:
    table = make_table("worker", "device", "backend")
    for cells in (("worker-0", "CPU", "cpu"), ("", "GPU", "cuda"), ("worker-1", "CPU", "cpu")):
        table.add_row(*cells)
    console = Console(width=12, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    first = [line for line in capture.get().splitlines() if not line.startswith(" ")]
    assert first == ["worker", "worker-0", "worker-1"]


def test_a_worker_row_fits_a_narrow_terminal() -> None:
    status = cluster_pb2.GetStatusResponse(
        scheduler=scheduler_pb2.SchedulerStatus(workers=[worker_view(running=4)])
    )
    console = Console(width=80, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(status_view(status))
    row = next(line for line in capture.get().splitlines() if line.startswith("worker-0"))
    for part in ("ready", "demo", "■■■■■■■■ 4/4", "15%", "210/s", "0.4 s"):
        assert part in row


def test_the_first_page_of_a_status_has_totals_and_says_how_to_see_the_rest() -> None:
    totals = scheduler_pb2.WorkerTotals(workers=1200, ready=1198, draining=2, slots=4800)
    status = cluster_pb2.GetStatusResponse(
        scheduler=scheduler_pb2.SchedulerStatus(workers=[worker_view(running=1)], worker_totals=totals),
        hosts=[cluster_pb2.HostSummary(host_id="h")],
        host_count=1,
        next_page_token="worker-0/h",
    )
    text = shown(status_view(status))
    assert "1,200 workers: ready 1,198, draining 2 · 4,800 slots" in text
    assert "1 of 1,200 workers shown (--all shows the others)" in text
    status.host_count = 2
    assert "1 of 1,200 workers and 1 of 2 hosts shown" in shown(status_view(status))
    assert "1 of 1,200 workers shown" in shown(cache_view(status))
    status.next_page_token = ""
    assert "--all" not in shown(status_view(status))


def a_page(*worker_ids: str, running: int, not_ready: str = "") -> cluster_pb2.GetStatusResponse:
    status = scheduler_pb2.SchedulerStatus(running=running, not_ready=not_ready)
    for worker_id in worker_ids:
        status.workers.add().status.worker_id = worker_id
    hosts = [cluster_pb2.HostSummary(host_id=f"host-of-{worker_id}") for worker_id in worker_ids]
    return cluster_pb2.GetStatusResponse(scheduler=status, hosts=hosts)


def test_pages_of_a_status_are_joined_and_its_counts_are_the_last_ones() -> None:
    whole = joined_status(
        [a_page("a", "b", running=5, not_ready="no leader answers"), a_page("c", running=6)]
    )
    assert [view.status.worker_id for view in whole.scheduler.workers] == ["a", "b", "c"]
    assert [host.host_id for host in whole.hosts] == ["host-of-a", "host-of-b", "host-of-c"]
    assert (whole.scheduler.running, whole.scheduler.not_ready) == (6, "no leader answers")
    assert joined_status([a_page("a", running=1)]) == a_page("a", running=1)


def test_pages_that_lack_the_scheduler_once_are_no_list_of_workers() -> None:
    silent = cluster_pb2.GetStatusResponse(hosts=[cluster_pb2.HostSummary(host_id="h")])
    for pages in ([a_page("a", running=1), silent], [silent, a_page("a", running=1)]):
        whole = joined_status(pages)
        assert not whole.HasField("scheduler")
        assert {host.host_id for host in whole.hosts} == {"h", "host-of-a"}


def test_status_says_when_the_scheduler_is_silent() -> None:
    assert "the scheduler does not answer" in shown(status_view(cluster_pb2.GetStatusResponse()))


def test_status_says_when_there_is_no_worker() -> None:
    status = cluster_pb2.GetStatusResponse(scheduler=scheduler_pb2.SchedulerStatus())
    assert "no worker has announced itself" in shown(status_view(status))


def test_the_cache_is_shown_with_cells_of_requests_and_of_prefixes_and_what_was_found() -> None:
    status = cluster_pb2.GetStatusResponse()
    assert "does not answer" in shown(cache_view(status))
    status.scheduler.SetInParent()
    assert "no worker" in shown(cache_view(status))
    view = worker_view(1)
    view.status.MergeFrom(
        scheduler_pb2.WorkerStatus(
            kv_cells_shared=321,
            kv_cells_cached=4567,
            kv_cells_high_water=6001,
            kv_bytes=96 << 20,
            kv_types="q8_0, f16",
            kv_cells_width=4000,
            kv_cells_holes=1000,
            cached_sequences=17,
            prefix_queries=40,
            prefix_hits=10,
            prefix_matched_tokens=12_345,
            prefix_sharing=scheduler_pb2.PREFIX_SHARING_WINDOW,
            prefix_sharing_reason="a window of 512",
            host_tier=scheduler_pb2.TierUse(bytes=3 << 20, states=7, hits=11),
            disk_tier=scheduler_pb2.TierUse(bytes=5 << 30, states=813, hits=29),
        )
    )
    status.scheduler.workers.extend([view, worker_view(0)])
    text = shown(cache_view(status))
    assert "96 MiB q8_0, f16" in text
    assert "4,000 (25% empty)" in text
    for part in ("8,192", "1,234", "321", "4,567", "6,001", "17", "10 of 40 (25%)", "12,345", "0 of 0"):
        assert part in text
    assert re.search(r"worker-0 +host memory +3 MiB +7 +11", text)
    assert re.search(r"worker-0 +disk +5 GiB +813 +29", text)
    assert max(map(len, text.splitlines())) <= 100
    assert "window" in text
    assert ": a window of 512" in text
    assert "unspecified" in text


def place(host_id: str, digest: str, **fields: Any) -> model_pb2.ModelPlace:
    return model_pb2.ModelPlace(host_id=host_id, digest=digest, **fields)


def test_a_name_with_two_files_shows_each_place_with_its_digest() -> None:
    ready, failed = model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_FAILED
    places = [place("g", "1234567890", state=ready), place("h", "abcdef0123", state=failed)]
    text = shown(models_table([model_pb2.Model(card=CARD, state=ready, places=places)]))
    for part in ("hosts have different files", "g ready 12345678", "h failed abcdef01"):
        assert part in text
    same = [place("g", "1234567890", state=ready), place("h", "1234567890", state=failed)]
    assert "different files" not in shown(models_table([model_pb2.Model(card=CARD, places=same)]))


def test_a_failed_model_shows_why_and_when_it_is_tried_again() -> None:
    failed = model_pb2.MODEL_STATE_FAILED
    later = time.time_ns() // 1_000_000 + 3_600_000
    model = model_pb2.Model(
        card=CARD,
        state=failed,
        reason="cut off",
        places=[place("g", "1", state=failed, retry_unix_ms=later)],
    )
    text = shown(models_table([model]))
    assert "cut off" in text
    assert re.search(r"tried again in (3599|3600) s", text)


def test_status_shows_what_hosts_have_loaded_and_how_much_memory_that_takes() -> None:
    host = cluster_pb2.HostSummary(
        host_id="worker-0",
        ready=2,
        failed=1,
        models_max=8,
        memory_bytes=4 << 30,
        memory_used_bytes=1 << 30,
        report_age_ms=300,
    )
    text = shown(status_view(cluster_pb2.GetStatusResponse(hosts=[host])))
    for part in ("worker-0", "ready 2, failed 1", "at most 8 loaded", "1 GiB of 4 GiB", "0.3 s"):
        assert part in text, text


def workers_shown(*views: scheduler_pb2.WorkerView) -> str:
    scheduler = scheduler_pb2.SchedulerStatus(workers=views)
    return shown(status_view(cluster_pb2.GetStatusResponse(scheduler=scheduler)))


def test_roles_have_a_column_as_soon_as_a_worker_has_one() -> None:
    whole, prompts, answers = worker_view(1), worker_view(0), worker_view(2)
    whole.status.role = scheduler_pb2.WORKER_ROLE_UNIFIED
    prompts.status.worker_id, prompts.status.role = "worker-prefill-0", scheduler_pb2.WORKER_ROLE_PREFILL
    answers.status.worker_id, answers.status.role = "worker-decode-0", scheduler_pb2.WORKER_ROLE_DECODE
    old = worker_view(0)
    assert "role" not in workers_shown(whole, old)
    lines = [line.split() for line in workers_shown(whole, prompts, answers, old).splitlines()]
    roles = {words[0]: words[2] for words in lines if words and words[0].startswith("worker-")}
    assert roles == {"worker-0": "unified", "worker-prefill-0": "prefill", "worker-decode-0": "decode"}


def test_pools_say_how_many_of_their_workers_are_ready() -> None:
    pools = [
        scheduler_pb2.PoolStatus(role=scheduler_pb2.WORKER_ROLE_PREFILL, ready=1),
        scheduler_pb2.PoolStatus(role=scheduler_pb2.WORKER_ROLE_DECODE, ready=1, expected=2),
    ]
    scheduler = scheduler_pb2.SchedulerStatus(pools=pools, moving=3)
    text = shown(status_view(cluster_pb2.GetStatusResponse(scheduler=scheduler)))
    assert "pools: prefill 1 ready · decode 1 of 2 ready" in text
    assert "0 queued · 3 moving" in text


def test_transfers_have_a_line_as_soon_as_there_are_any() -> None:
    view = worker_view(0)
    view.status.kv_transfers.SetInParent()
    assert "transfer" not in workers_shown(view)
    view.status.kv_transfers.under_way = 2
    assert "worker-0: 0 transfers of KV state from others, 0 B in all · 2 under way" in workers_shown(view)
    transfers = scheduler_pb2.KvTransfers(done=1, failed=1, bytes=3 << 30, bytes_per_s=1.5e9)
    view.status.kv_transfers.CopyFrom(transfers)
    said = "1 transfer of KV state from others, 3 GiB in all · at 1.4 GiB/s · 1 failed"
    assert said in workers_shown(view)


def test_workers_and_hosts_are_in_the_order_of_their_numbers() -> None:
    names = ["gpu", "worker-1", "worker-10", "worker-2"]
    workers = [scheduler_pb2.WorkerView(status=scheduler_pb2.WorkerStatus(worker_id=name)) for name in names]
    status = cluster_pb2.GetStatusResponse(
        scheduler=scheduler_pb2.SchedulerStatus(workers=workers),
        hosts=[cluster_pb2.HostSummary(host_id=name) for name in names],
    )
    first = [line.split()[0] for line in shown(status_view(status)).splitlines() if line.split()]
    assert [word for word in first if word in names] == ["gpu", "worker-1", "worker-2", "worker-10"] * 2
