"""Status and models as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from inferflux.v1 import cluster_pb2, model_pb2, scheduler_pb2

_BAR = 8

_STATES = {
    scheduler_pb2.WORKER_STATE_LOADING: "[yellow]loading[/]",
    scheduler_pb2.WORKER_STATE_READY: "[green]ready[/]",
    scheduler_pb2.WORKER_STATE_DRAINING: "[yellow]draining[/]",
}


def models_table(models: Sequence[model_pb2.Model]) -> Table:
    """A row per model."""
    table = _table("model", "arch", ">params", ">size", ">context", ">vocab", ">workers", "digest")
    for model in models:
        card = model.card
        table.add_row(
            f"[bold]{escape(card.name)}[/]",
            escape(card.architecture),
            _scaled(card.parameters, 1000, ("", " k", " M", " B")),
            _scaled(card.size_bytes, 1024, (" B", " KiB", " MiB", " GiB")),
            f"{card.context_length:,}",
            f"{card.vocabulary_size:,}",
            str(model.workers) if model.workers else "[red]0[/]",
            f"[dim]{card.digest[:8]}[/]",
        )
    return table


def status_view(status: cluster_pb2.GetStatusResponse) -> RenderableType:
    """Services, the queue, and a row per worker."""
    services = _table("service", "", "")
    for service in status.services:
        mark = "[green]ready[/]" if service.is_ready else "[red]not ready[/]"
        services.add_row(service.name, mark, f"[dim]{escape(service.detail)}[/]")
    if not status.HasField("scheduler"):
        return Group(services, "", "[red]the scheduler does not answer: workers and queue are unknown[/]")
    scheduler = status.scheduler
    oldest = f", the oldest for {scheduler.oldest_wait_ms / 1000:.1f} s" if scheduler.queued else ""
    queue = f"[bold]{scheduler.running}[/] running · [bold]{scheduler.queued}[/] queued{oldest}"
    return Group(services, "", queue, "", _workers(scheduler.workers))


def _workers(workers: Sequence[scheduler_pb2.WorkerView]) -> RenderableType:
    if not workers:
        return "[yellow]no worker has announced itself[/]"
    table = _table("worker", "", "models", "slots", ">KV used", ">decode", ">heard", "process")
    for view in workers:
        status = view.status
        table.add_row(
            escape(status.worker_id),
            _STATES.get(status.state, "unknown"),
            escape(", ".join(card.name for card in status.models)),
            _slots(view),
            f"{status.kv_cells_reserved / max(1, status.kv_cells):.0%}",
            _rate(status.decode_tokens_per_s),
            f"{view.heartbeat_age_ms / 1000:.1f} s",
            f"[dim]{escape(status.host)}:{status.pid}[/]",
        )
    return table


def _slots(view: scheduler_pb2.WorkerView) -> str:
    """Taken slots of all, as a bar and in numbers."""
    taken = sum(slot.state != "free" for slot in view.slots)
    filled = -(-taken * _BAR // len(view.slots)) if view.slots else 0
    return f"[green]{'■' * filled}[/][dim]{'□' * (_BAR - filled)}[/] {taken}/{len(view.slots)}"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}/s" if tokens_per_s else "[dim]-[/]"


def _scaled(value: int, step: int, units: Sequence[str]) -> str:
    scaled = float(value)
    for unit in units[:-1]:
        if scaled < step:
            return f"{scaled:.3g}{unit}"
        scaled /= step
    return f"{scaled:.3g}{units[-1]}"


def _table(*columns: str) -> Table:
    """Columns by their headings; a leading > aligns to the right. What is too wide wraps in the last."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for index, heading in enumerate(columns, start=1):
        table.add_column(
            heading.removeprefix(">"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=index < len(columns),
        )
    return table
