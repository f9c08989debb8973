"""Status of services, schedulers, workers and hosts as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from inferflux.v1 import cluster_pb2, scheduler_pb2

from .model_tables import paths_without, styled
from .rows import bytes_words, make_table

_BAR = 8
_STATES = {
    scheduler_pb2.WORKER_STATE_LOADING: "[yellow]loading[/]",
    scheduler_pb2.WORKER_STATE_READY: "[green]ready[/]",
    scheduler_pb2.WORKER_STATE_DRAINING: "[yellow]draining[/]",
}
_ROLES = {
    scheduler_pb2.WORKER_ROLE_PREFILL: "prefill",
    scheduler_pb2.WORKER_ROLE_DECODE: "decode",
}


def fairness_view(fairness: scheduler_pb2.Fairness) -> Table:
    """A row per setting, in words."""
    table = make_table("fairness", "", "")
    slice_ = fairness.max_timeslice_tokens
    table.add_row("preemption", "[green]on[/]" if fairness.enable_preemption else "off", "[dim]--preempt[/]")
    table.add_row("high priority", f"{fairness.high_priority_threshold} and above", "[dim]--high-priority[/]")
    table.add_row("timeslice", f"{slice_:,} tokens" if slice_ else "off", "[dim]--timeslice[/]")
    table.add_row("version", str(fairness.version or "unknown"), "[dim]--version[/]")
    return table


def moved_view(moved: scheduler_pb2.MovedRequest) -> str:
    """A line on a request that was moved."""
    request_id, left, to = map(escape, (moved.request_id, moved.from_worker_id, moved.worker_id))
    tokens, took_s = f"{moved.tokens:,} tokens went ahead", f"{moved.took_ms / 1000:.2f} s"
    return f"{request_id} runs on {to} now, and left {left} [dim]({tokens}, {took_s})[/]"


def status_view(status: cluster_pb2.GetStatusResponse) -> RenderableType:
    """Services, the queue, and a row per worker."""
    services = make_table("service", "", "")
    for service in status.services:
        mark = "[green]ready[/]" if service.is_ready else "[red]not ready[/]"
        services.add_row(service.name, mark, f"[dim]{escape(service.detail)}[/]")
    hosts: list[RenderableType] = ["", _hosts(status.hosts)] if status.hosts else []
    if not status.HasField("scheduler"):
        unknown = "[red]the scheduler does not answer: workers and queue are unknown[/]"
        return Group(services, "", unknown, *hosts, *rest_lines(status))
    scheduler = status.scheduler
    partitions: list[RenderableType] = ["", _partitions(status.partitions)] if status.partitions else []
    lines = _scheduler_lines(scheduler, is_whole=not partitions)
    more = rest_lines(status)
    return Group(services, "", *lines, *partitions, "", _workers(scheduler.workers), *hosts, *more)


def rest_lines(status: cluster_pb2.GetStatusResponse, *, has_hosts: bool = True) -> list[str]:
    """Lines about workers and hosts that are not shown; none where all of them are."""
    if not status.next_page_token:
        return []
    counts = (
        ("workers", len(status.scheduler.workers), status.scheduler.worker_totals.workers),
        ("hosts", len(status.hosts), status.host_count if has_hosts else 0),
    )
    shown = [f"{n:,} of {total:,} {name}" for name, n, total in counts if n < total]
    if not shown:
        return []
    return ["", f"[yellow]{' and '.join(shown)} shown[/] [dim](--all shows the others)[/]"]


def _partitions(partitions: Sequence[scheduler_pb2.SchedulerStatus]) -> Table:
    table = make_table("partition", "led by", ">term", ">running", ">queued", ">oldest", "")
    for each in partitions:
        table.add_row(
            escape(each.partition),
            escape(each.leader),
            str(each.term),
            str(each.running),
            str(each.queued),
            f"{each.oldest_wait_ms / 1000:.1f} s" if each.queued else "",
            f"[red]{escape(each.not_ready)}[/]" if each.not_ready else "",
        )
    return table


def _hosts(hosts: Sequence[cluster_pb2.HostSummary]) -> RenderableType:
    table = make_table("host", "", "models", ">memory of models", ">last seen")
    for host in sorted(hosts, key=lambda host: _numbered(host.host_id)):
        counts = {
            "ready": host.ready,
            "loading": host.loading,
            "unloading": host.unloading,
            "failed": host.failed,
            "registered": host.registered,
        }
        said = [f"{styled(state)} {count}" for state, count in counts.items() if count]
        used, room = bytes_words(host.memory_used_bytes), bytes_words(host.memory_bytes)
        table.add_row(
            escape(host.host_id),
            "[yellow]leaving[/]" if host.is_leaving else "[green]alive[/]",
            f"{', '.join(said) or 'none'} [dim](at most {host.models_max} loaded)[/]",
            f"{used} of {room}",
            f"{host.report_age_ms / 1000:.1f} s",
        )
    return table


def _numbered(name: str) -> list[tuple[int, str]]:
    """Sort key of a name, by which worker-9 comes before worker-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _scheduler_lines(scheduler: scheduler_pb2.SchedulerStatus, *, is_whole: bool) -> list[str]:
    """The queue in numbers; then who decides, and by what.

    Args:
        is_whole: one scheduler leads all models.
    """
    moving = f" · [bold]{scheduler.moving}[/] moving" if scheduler.moving else ""
    parked = f" · [bold]{scheduler.parked}[/] parked" if scheduler.parked else ""
    oldest = f", the oldest for {scheduler.oldest_wait_ms / 1000:.1f} s" if scheduler.queued else ""
    queue = (
        f"[bold]{scheduler.running}[/] running · [bold]{scheduler.queued}[/] queued{parked}{moving}{oldest}"
    )
    rules = [
        f"led by {escape(scheduler.leader)}, term {scheduler.term}" if is_whole and scheduler.leader else "",
        f"policy {escape(scheduler.policy)}" if scheduler.policy else "",
        _fairness_words(scheduler.fairness) if scheduler.HasField("fairness") else "",
    ]
    said = " · ".join(rule for rule in rules if rule)
    lines = [queue, *_totals_lines(scheduler.worker_totals), *_pool_lines(scheduler.pools)]
    return [*lines, f"[dim]{said}[/]"] if said else lines


def _totals_lines(totals: scheduler_pb2.WorkerTotals) -> list[str]:
    """Number of workers by state; no line for a single worker."""
    if totals.workers < 2:
        return []
    states = {"ready": totals.ready, "loading": totals.loading, "draining": totals.draining}
    said = ", ".join(f"{styled(state)} {count:,}" for state, count in states.items() if count)
    return [f"[bold]{totals.workers:,}[/] workers: {said} · {totals.slots:,} slots"]


def _pool_lines(pools: Sequence[scheduler_pb2.PoolStatus]) -> list[str]:
    """Ready workers of each role; no line without workers that have one, or should have."""
    if not pools:
        return []
    counts = []
    for pool in pools:
        count = f"{pool.ready:,} of {pool.expected:,}" if pool.expected else f"{pool.ready:,}"
        colour = "yellow" if pool.ready < pool.expected else "green"
        counts.append(f"{_ROLES.get(pool.role, 'unified')} [{colour}]{count} ready[/]")
    return [f"pools: {' · '.join(counts)}"]


def _fairness_words(fairness: scheduler_pb2.Fairness) -> str:
    threshold, tokens = fairness.high_priority_threshold, fairness.max_timeslice_tokens
    preemption = f"preemption from priority {threshold}" if fairness.enable_preemption else "no preemption"
    return f"{preemption} · timeslice {tokens:,} tokens" if tokens else f"{preemption} · no timeslice"


def _workers(workers: Sequence[scheduler_pb2.WorkerView]) -> RenderableType:
    if not workers:
        return "[yellow]no worker has announced itself[/]"
    has_roles = any(view.status.role in _ROLES for view in workers)
    headings = ("models", "slots", ">parked", ">KV used", ">decode", ">last seen", "process")
    table = make_table("worker", "", *(["role"] if has_roles else []), *headings, last=0)
    has_zones = any(view.status.zone for view in workers)
    for view in sorted(workers, key=lambda view: _numbered(view.status.worker_id)):
        status = view.status
        zone = f"{escape(status.zone or '?')} · " if has_zones else ""
        table.add_row(
            escape(status.worker_id),
            _STATES.get(status.state, "unknown"),
            *([_ROLES.get(status.role, "unified")] if has_roles else []),
            escape(", ".join(card.name for card in status.models)),
            _slots(view),
            _parked(view),
            f"{status.kv_cells_used / max(1, status.kv_cells):.0%}",
            _rate(status.decode_tokens_per_s),
            f"{view.heartbeat_age_ms / 1000:.1f} s",
            f"[dim]{zone}{escape(status.host)}:{status.pid}[/]",
        )
    said = ((*_speed_lines(view), *_transfer_lines(view), *_device_lines(view.status)) for view in workers)
    lines = [line for of_one in said for line in of_one]
    return Group(table, *lines) if lines else table


def _speed_lines(view: scheduler_pb2.WorkerView) -> list[str]:
    """Slowness of a worker that gets fewer requests for it."""
    if view.slowness <= 1:
        return []
    name, slowness = escape(view.status.worker_id), view.slowness
    return [f"[dim]{name}: counts as {slowness:g} times slower than the fastest of its model[/]"]


def _transfer_lines(view: scheduler_pb2.WorkerView) -> list[str]:
    """KV state that a worker has fetched from others; no line if there was none."""
    transfers = view.status.kv_transfers
    done, failed, under_way = transfers.done, transfers.failed, transfers.under_way
    if not (done or failed or under_way):
        return []
    counts = [
        f"{done:,} transfer{'' if done == 1 else 's'} of KV state from others, "
        f"{bytes_words(transfers.bytes)} in all",
        f"at {bytes_words(round(transfers.bytes_per_s))}/s" if transfers.bytes_per_s else "",
        f"[bold]{under_way:,}[/] under way" if under_way else "",
        f"[red]{failed:,} failed[/]" if failed else "",
    ]
    return [f"[dim]{escape(view.status.worker_id)}: {' · '.join(filter(None, counts))}[/]"]


def _device_lines(status: scheduler_pb2.WorkerStatus) -> list[str]:
    """Devices of a model that is not on the CPU alone, and warnings about its device settings."""
    context, name = status.device_context, escape(status.worker_id)
    lines = [f"[yellow]{name}: {escape(warning)}[/]" for warning in context.warnings]
    if context.gpu_layers:
        on = ", ".join(device.name for device in context.devices if device.layers)
        lines.append(f"[dim]{name}: {context.gpu_layers} of {context.layers} layers on GPUs: {escape(on)}[/]")
    lines += [f"[dim]{name}: without {why}[/]" for card in status.models for why in paths_without(card)]
    return lines


def _slots(view: scheduler_pb2.WorkerView) -> str:
    """Requests that run, of as many as may at once, as a bar and in numbers."""
    most = view.status.slots
    if not view.slots:  # left out of the message, or not known yet
        return f"[dim]{'□' * _BAR}[/] ?/{most}"
    running = sum(slot.state == "running" for slot in view.slots)
    filled = min(_BAR, -(-running * _BAR // max(1, most)))
    return f"[green]{'■' * filled}[/][dim]{'□' * (_BAR - filled)}[/] {running}/{most}"


def _parked(view: scheduler_pb2.WorkerView) -> str:
    """Requests that wait to resume: those in the KV cache, then those outside it."""
    residences = [resident.residence for resident in view.status.residents]
    parked = residences.count(scheduler_pb2.RESIDENCE_PARKED)
    swapped = residences.count(scheduler_pb2.RESIDENCE_SWAPPED)
    if swapped:
        return f"{parked}, {swapped} swapped"
    return str(parked) if parked else "[dim]-[/]"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}/s" if tokens_per_s else "[dim]-[/]"
