"""Models as tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from inferflux.v1 import device_pb2, model_pb2

from .rows import bytes_words, make_table, scaled

_NAME_COLUMNS = 20
_STATE_COLUMNS = len("registered")


def models_table(models: Sequence[model_pb2.Model], *, is_flat: bool = False) -> Table:
    """A row per model.

    Args:
        is_flat: a row is one line, as programs read it.
    """
    table = make_table(
        "model", "state", "arch", ">params", ">size", ">context", ">needs", ">workers", "digest"
    )
    # Where a terminal is narrow, architecture and digest fold first: names and states are what is looked for.
    between = " " if is_flat else "\n"
    longest = max((len(model.card.name) for model in models), default=0)
    for column, least in zip(table.columns, (min(longest, _NAME_COLUMNS), _STATE_COLUMNS, 1), strict=False):
        column.no_wrap, column.overflow, column.min_width = False, "fold", least
    for model in models:
        card = model.card
        needs = max((place.needs_bytes for place in model.places), default=0)
        table.add_row(
            _names(model).replace("\n", between),
            _state(model).replace("\n", between),
            escape(" ".join(filter(None, (card.architecture, card.quantization)))),
            scaled(card.parameters, 1000, ("", " k", " M", " B")),
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
        ("parameters", scaled(card.parameters, 1000, ("", " k", " M", " B"))),
        ("experts", f"{card.n_active_experts} of {card.n_experts} for a token" if card.n_experts else ""),
        ("experts on", "\n".join(rank_words(rank) for rank in card.expert_ranks)),
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
            styled(_word(place.state)),
            bytes_words(place.needs_bytes) if place.needs_bytes else "",
            escape("\n".join(filter(None, (place.path, place.mmproj_path)))),
        )
    return Group(about, places) if model.places else about


def rank_words(rank: device_pb2.ExpertPlacement) -> str:
    """Layers whose experts a device has, and the device."""
    where = f"{rank.device} ({rank.endpoint})" if rank.endpoint else rank.device
    return escape(f"{where}: layers {rank.first_layer}-{rank.last_layer}")


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
    lines = [f"{styled(_word(model.state))}{why}"]
    retries = [place.retry_unix_ms for place in model.places if place.retry_unix_ms]
    if retries and model.state == model_pb2.MODEL_STATE_FAILED:
        left_s = max(min(retries) / 1000 - time.time(), 0.0)
        lines.append(f"[dim]tried again in {left_s:.0f} s[/]")
    if len({place.digest for place in model.places}) > 1:
        lines.append("[red]hosts have different files:[/]")
        lines += [
            f"{escape(place.host_id)} {styled(_word(place.state))} [dim]{place.digest[:8]}[/]"
            for place in model.places
        ]
    return "\n".join(lines)


def _word(state: model_pb2.ModelState.ValueType) -> str:
    return model_pb2.ModelState.Name(state).removeprefix("MODEL_STATE_").lower()


def styled(word: str) -> str:
    return f"{_STATE_STYLES[word]}{word}[/]" if word in _STATE_STYLES else word


_STATE_STYLES = {"ready": "[green]", "loading": "[yellow]", "unloading": "[yellow]", "failed": "[red]"}
