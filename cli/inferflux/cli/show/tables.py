"""Status and models as tables."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from inferflux.common.prefixes.sharing import sharing_name
from inferflux.v1 import admin_pb2, cluster_pb2, model_pb2, scheduler_pb2

from .rows import Rows

_BAR = 8
_BYTE_UNITS = (" B", " KiB", " MiB", " GiB")

_STATES = {
    scheduler_pb2.WORKER_STATE_LOADING: "[yellow]loading[/]",
    scheduler_pb2.WORKER_STATE_READY: "[green]ready[/]",
    scheduler_pb2.WORKER_STATE_DRAINING: "[yellow]draining[/]",
}


_NAME_COLUMNS = 20
_STATE_COLUMNS = len("registered")


def models_table(models: Sequence[model_pb2.Model]) -> Table:
    """A row per model."""
    table = make_table(
        "model", "state", "arch", ">params", ">size", ">context", ">needs", ">workers", "digest"
    )
    # Where a terminal is narrow, architecture and digest fold first: names and states are what is looked for.
    longest = max((len(model.card.name) for model in models), default=0)
    for column, least in zip(table.columns, (min(longest, _NAME_COLUMNS), _STATE_COLUMNS, 1), strict=False):
        column.no_wrap, column.overflow, column.min_width = False, "fold", least
    for model in models:
        card = model.card
        needs = max((place.needs_bytes for place in model.places), default=0)
        table.add_row(
            _names(model),
            _state(model),
            escape(" ".join(filter(None, (card.architecture, card.quantization)))),
            _scaled(card.parameters, 1000, ("", " k", " M", " B")),
            bytes_words(card.size_bytes),
            f"{card.context_length:,}",
            bytes_words(needs) if needs else "",
            str(model.workers) if model.workers else "[dim]0[/]",
            f"[dim]{card.digest[:8]}[/]",
        )
    return table


def model_view(model: model_pb2.Model) -> RenderableType:
    """One model: what it is and can do, and where it is."""
    card = model.card
    about = Table.grid(padding=(0, 2))
    rows = (
        ("model", _names(model)),
        ("state", _state(model)),
        ("digest", card.digest),
        ("architecture", escape(" ".join(filter(None, (card.architecture, card.quantization))))),
        ("parameters", _scaled(card.parameters, 1000, ("", " k", " M", " B"))),
        ("experts", f"{card.n_active_experts} of {card.n_experts} for a token" if card.n_experts else ""),
        ("size", bytes_words(card.size_bytes)),
        ("context", f"{card.context_length:,}"),
        ("KV of a token", bytes_words(card.kv_bytes_per_token) if card.kv_bytes_per_token else ""),
        ("can", ", ".join(abilities(card))),
        ("computes with", ", ".join(_path_name(path) for path in card.paths if path.is_on)),
        ("without", "\n".join(paths_without(card))),
    )
    for name, words in rows:
        if words:
            about.add_row(f"[dim]{name}[/]", words)
    places = make_table("host", "state", ">needs", "file")
    for place in model.places:
        places.add_row(
            escape(place.host_id),
            _styled(_word(place.state)),
            bytes_words(place.needs_bytes) if place.needs_bytes else "",
            escape("\n".join(filter(None, (place.path, place.mmproj_path)))),
        )
    return Group(about, places) if model.places else about


def abilities(card: model_pb2.ModelCard) -> list[str]:
    """Capabilities of a model, in words."""
    if card.role == model_pb2.MODEL_ROLE_EMBEDDING:
        return ["embed"]
    if card.role == model_pb2.MODEL_ROLE_RERANK:
        return ["rerank"]
    known = (
        ("chat", card.has_chat_template),
        ("generic tools" if card.has_generic_tools else "tools", card.can_call_tools),
        ("constraints", card.can_constrain),
        ("images", card.takes_images),
        ("audio", card.takes_audio),
        ("speculation", card.can_speculate),
    )
    return [word for word, holds in known if holds]


def paths_without(card: model_pb2.ModelCard) -> list[str]:
    """List what its engine does without, or without a part of, and why."""
    return [f"{_path_name(path)}: {escape(path.reason)}" for path in card.paths if path.reason]


def _path_name(path: model_pb2.EnginePath) -> str:
    return escape(path.name.replace("_", " "))


def _names(model: model_pb2.Model) -> str:
    """Its name, the others and its adapters below it, and what else is said of it."""
    marks = [mark for mark, holds in (("default", model.is_default), ("pinned", model.is_pinned)) if holds]
    lines = [f"[bold]{escape(model.card.name)}[/]", *(f"[dim]{escape(alias)}[/]" for alias in model.aliases)]
    lines += [f"[cyan]:{escape(adapter.name)}[/]" for adapter in model.card.adapters]
    return "\n".join([*lines, *(f"[dim]({mark})[/]" for mark in marks)])


def _state(model: model_pb2.Model) -> str:
    """Its state and the reason of a failure; places that have another file under its name, each."""
    why = f"\n[red]{escape(model.reason)}[/]" if model.reason else ""
    lines = [f"{_styled(_word(model.state))}{why}"]
    retries = [place.retry_unix_ms for place in model.places if place.retry_unix_ms]
    if retries and model.state == model_pb2.MODEL_STATE_FAILED:
        left_s = max(min(retries) / 1000 - time.time(), 0.0)
        lines.append(f"[dim]tried again in {left_s:.0f} s[/]")
    if len({place.digest for place in model.places}) > 1:
        lines.append("[red]hosts have different files:[/]")
        lines += [
            f"{escape(place.host_id)} {_styled(_word(place.state))} [dim]{place.digest[:8]}[/]"
            for place in model.places
        ]
    return "\n".join(lines)


def _word(state: model_pb2.ModelState.ValueType) -> str:
    return model_pb2.ModelState.Name(state).removeprefix("MODEL_STATE_").lower()


def _styled(word: str) -> str:
    return f"{_STATE_STYLES[word]}{word}[/]" if word in _STATE_STYLES else word


_STATE_STYLES = {"ready": "[green]", "loading": "[yellow]", "unloading": "[yellow]", "failed": "[red]"}


def fairness_view(fairness: scheduler_pb2.Fairness) -> Table:
    """A row per setting, in words."""
    table = make_table("fairness", "", "")
    slice_ = fairness.max_timeslice_tokens
    table.add_row("preemption", "[green]on[/]" if fairness.enable_preemption else "off", "[dim]--preempt[/]")
    table.add_row("high priority", f"{fairness.high_priority_threshold} and above", "[dim]--high-priority[/]")
    table.add_row("timeslice", f"{slice_:,} tokens" if slice_ else "off", "[dim]--timeslice[/]")
    table.add_row("version", str(fairness.version or "unknown"), "[dim]--version[/]")
    return table


def status_view(status: cluster_pb2.GetStatusResponse) -> RenderableType:
    """Services, the queue, and a row per worker."""
    services = make_table("service", "", "")
    for service in status.services:
        mark = "[green]ready[/]" if service.is_ready else "[red]not ready[/]"
        services.add_row(service.name, mark, f"[dim]{escape(service.detail)}[/]")
    hosts: list[RenderableType] = ["", _hosts(status.hosts)] if status.hosts else []
    if not status.HasField("scheduler"):
        unknown = "[red]the scheduler does not answer: workers and queue are unknown[/]"
        return Group(services, "", unknown, *hosts, *_rest(status))
    scheduler = status.scheduler
    partitions: list[RenderableType] = ["", _partitions(status.partitions)] if status.partitions else []
    lines = _scheduler_lines(scheduler, is_whole=not partitions)
    more = _rest(status)
    return Group(services, "", *lines, *partitions, "", _workers(scheduler.workers), *hosts, *more)


def _rest(status: cluster_pb2.GetStatusResponse, *, has_hosts: bool = True) -> list[str]:
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
        said = [f"{_styled(state)} {count}" for state, count in counts.items() if count]
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
    parked = f" · [bold]{scheduler.parked}[/] parked" if scheduler.parked else ""
    oldest = f", the oldest for {scheduler.oldest_wait_ms / 1000:.1f} s" if scheduler.queued else ""
    queue = f"[bold]{scheduler.running}[/] running · [bold]{scheduler.queued}[/] queued{parked}{oldest}"
    rules = [
        f"led by {escape(scheduler.leader)}, term {scheduler.term}" if is_whole and scheduler.leader else "",
        f"policy {escape(scheduler.policy)}" if scheduler.policy else "",
        _fairness_words(scheduler.fairness) if scheduler.HasField("fairness") else "",
    ]
    said = " · ".join(rule for rule in rules if rule)
    lines = [queue, *_totals_lines(scheduler.worker_totals)]
    return [*lines, f"[dim]{said}[/]"] if said else lines


def _totals_lines(totals: scheduler_pb2.WorkerTotals) -> list[str]:
    """Number of workers by state; no line for a single worker."""
    if totals.workers < 2:
        return []
    states = {"ready": totals.ready, "loading": totals.loading, "draining": totals.draining}
    said = ", ".join(f"{_styled(state)} {count:,}" for state, count in states.items() if count)
    return [f"[bold]{totals.workers:,}[/] workers: {said} · {totals.slots:,} slots"]


def _fairness_words(fairness: scheduler_pb2.Fairness) -> str:
    threshold, tokens = fairness.high_priority_threshold, fairness.max_timeslice_tokens
    preemption = f"preemption from priority {threshold}" if fairness.enable_preemption else "no preemption"
    return f"{preemption} · timeslice {tokens:,} tokens" if tokens else f"{preemption} · no timeslice"


def _workers(workers: Sequence[scheduler_pb2.WorkerView]) -> RenderableType:
    if not workers:
        return "[yellow]no worker has announced itself[/]"
    table = make_table(
        "worker", "", "models", "slots", ">parked", ">KV used", ">decode", ">last seen", "process", last=0
    )
    has_zones = any(view.status.zone for view in workers)
    for view in sorted(workers, key=lambda view: _numbered(view.status.worker_id)):
        status = view.status
        zone = f"{escape(status.zone or '?')} · " if has_zones else ""
        table.add_row(
            escape(status.worker_id),
            _STATES.get(status.state, "unknown"),
            escape(", ".join(card.name for card in status.models)),
            _slots(view),
            _parked(view),
            f"{status.kv_cells_used / max(1, status.kv_cells):.0%}",
            _rate(status.decode_tokens_per_s),
            f"{view.heartbeat_age_ms / 1000:.1f} s",
            f"[dim]{zone}{escape(status.host)}:{status.pid}[/]",
        )
    lines = [line for view in workers for line in _device_lines(view.status)]
    return Group(table, *lines) if lines else table


def _device_lines(status: scheduler_pb2.WorkerStatus) -> list[str]:
    """Devices of a model that is not on the CPU alone, and warnings about its device settings."""
    context, name = status.device_context, escape(status.worker_id)
    lines = [f"[yellow]{name}: {escape(warning)}[/]" for warning in context.warnings]
    if context.gpu_layers:
        on = ", ".join(device.name for device in context.devices if device.layers)
        lines.append(f"[dim]{name}: {context.gpu_layers} of {context.layers} layers on GPUs: {escape(on)}[/]")
    lines += [f"[dim]{name}: without {why}[/]" for card in status.models for why in paths_without(card)]
    return lines


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
    return Group(
        _cells(workers), "", _found(workers), *reasons, "", _tiers(workers), *_rest(status, has_hosts=False)
    )


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


def bytes_words(n: int) -> str:
    """`24 GiB`."""
    return _scaled(n, 1024, _BYTE_UNITS)


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


def _scaled(value: int, step: int, units: Sequence[str]) -> str:
    scaled = float(value)
    for unit in units[:-1]:
        if scaled < step:
            return f"{scaled:.3g}{unit}"
        scaled /= step
    return f"{scaled:.3g}{units[-1]}"


def make_table(*columns: str, last: int = 20) -> Table:
    """Columns by their headings; a leading > aligns to the right.

    Args:
        last: what is too wide wraps in the last column, which keeps this many characters.
    """
    table = Rows(last)
    for index, heading in enumerate(columns, start=1):
        table.add_column(
            heading.removeprefix(">"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=index < len(columns),
        )
    return table
