"""Caches of workers as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape

from inferflux.common.prefixes.names import sharing_name
from inferflux.v1 import admin_pb2, cluster_pb2, scheduler_pb2

from .rows import bytes_words, make_table
from .status_tables import rest_lines


def cache_view(status: cluster_pb2.GetStatusResponse) -> RenderableType:
    """View of each worker's KV cache, and how often a prompt finds a prefix there."""
    if not status.HasField("scheduler"):
        return "[red]the scheduler does not answer: workers are unknown[/]"
    if not status.scheduler.workers:
        return "[yellow]no worker has announced itself[/]"
    workers = [view.status for view in status.scheduler.workers]
    reasons = [
        f"[dim]{escape(worker.worker_id)}: {escape(worker.prefix_sharing_reason)}[/]"
        for worker in workers
        if worker.prefix_sharing_reason
    ]
    rest = rest_lines(status, has_hosts=False)
    return Group(_cells(workers), "", _found(workers), *reasons, "", _tiers(workers), *rest)


def _cells(workers: Sequence[scheduler_pb2.WorkerStatus]) -> RenderableType:
    """Table of the cells of each worker's KV cache."""
    table = make_table(
        "worker", ">KV cells", ">memory", ">of requests", ">cached", ">shared", ">most filled", "width"
    )
    for worker in workers:
        table.add_row(
            escape(worker.worker_id),
            f"{worker.kv_cells:,}",
            _kv_memory(worker),
            f"{worker.kv_cells_used:,}",
            f"{worker.kv_cells_cached:,}",
            f"{worker.kv_cells_shared:,}",
            f"{worker.kv_cells_high_water:,}",
            _width(worker),
        )
    return table


def _found(workers: Sequence[scheduler_pb2.WorkerStatus]) -> RenderableType:
    """Table of cached sequences, and how often a prompt finds a prefix."""
    table = make_table("worker", ">cached sequences", ">prompts found", ">tokens found", "shares")
    for worker in workers:
        part = f" ({worker.prefix_hits / worker.prefix_queries:.0%})" if worker.prefix_queries else ""
        table.add_row(
            escape(worker.worker_id),
            f"{worker.cached_sequences:,}",
            f"{worker.prefix_hits:,} of {worker.prefix_queries:,}{part}",
            f"{worker.prefix_matched_tokens:,}",
            sharing_name(worker.prefix_sharing),
        )
    return table


def _tiers(workers: Sequence[scheduler_pb2.WorkerStatus]) -> RenderableType:
    """Table of KV state in host memory and on disk, and how often a prefix was restored from there."""
    table = make_table("worker", "tier", ">in use", ">states", "prefixes restored")
    for worker in workers:
        for name, tier in (("host memory", worker.host_tier), ("disk", worker.disk_tier)):
            table.add_row(
                escape(worker.worker_id), name, bytes_words(tier.bytes), f"{tier.states:,}", f"{tier.hits:,}"
            )
    return table


def _kv_memory(worker: scheduler_pb2.WorkerStatus) -> str:
    """Memory of keys and values, and their types unless they are f16."""
    if not worker.kv_bytes:
        return "[dim]-[/]"
    types = "" if worker.kv_types in ("", "f16") else f" {escape(worker.kv_types)}"
    return bytes_words(worker.kv_bytes) + types


def _width(worker: scheduler_pb2.WorkerStatus) -> str:
    """Most cells that a step goes through, and the part of them that is empty."""
    if not worker.kv_cells_width:
        return "[dim]-[/]"
    empty = worker.kv_cells_holes / worker.kv_cells_width
    return f"{worker.kv_cells_width:,}" + (f" ({empty:.0%} empty)" if worker.kv_cells_holes else "")


def cleared_view(response: admin_pb2.ClearCacheResponse) -> RenderableType:
    """A row per worker, and what went of the answer cache."""
    parts: list[RenderableType] = []
    if response.workers:
        table = make_table("worker", ">sequences", ">KV cells", ">in host memory", ">on disk", "")
        for worker in response.workers:
            freed = worker.cleared
            table.add_row(
                escape(worker.worker_id),
                f"{freed.sequences:,}",
                f"{freed.cells:,}",
                bytes_words(freed.host_bytes),
                bytes_words(freed.disk_bytes),
                f"[red]{escape(worker.error)}[/]" if worker.error else "",
            )
        parts.append(table)
    if response.HasField("answers"):
        cleared = response.answers
        words = "1 answer" if cleared.answers == 1 else f"{cleared.answers:,} answers"
        error = f" [red]{escape(cleared.error)}[/]" if cleared.error else ""
        parts.append(f"answer cache: {words}, {bytes_words(cleared.bytes)}{error}")
    return Group(*parts) if parts else "[yellow]no worker has announced itself[/]"
