"""Findings of all studies: as JSON, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from . import charts
from .figures import Waits, jain_index
from .studies import (
    CONVERSATIONS,
    TURNS,
    Conversations,
    Flood,
    ModeResult,
    Overload,
    PolicyResult,
    Scale,
    Scope,
    Starvation,
)

_WAITS = ("p50", "p90", "p99", "max")


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text; the first column is of words, the others of figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(slots=True)
class Findings:
    """`weighted` are the rates of service per second and weight under `fair` when the tenant that sends more
    has twice the weight."""

    scope: Scope
    policies: list[PolicyResult] = field(default_factory=list)
    weighted: dict[str, float] = field(default_factory=dict)
    floods: list[Flood] = field(default_factory=list)
    starvation: list[Starvation] = field(default_factory=list)
    modes: list[ModeResult] = field(default_factory=list)
    overloads: list[Overload] = field(default_factory=list)
    conversations: list[Conversations] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """`placements_per_s`, `cost_exponent` and `wait_s` are of the first policy; each is told of all of
        them under `scale` and `policies`."""
        scale, first = self.scales[0], self.policies[0]
        return {
            "placements_per_s": round(scale.whole_pass.placements_per_s, 1),
            "cost_exponent": round(scale.exponent, 4),
            "jain_index": {one.policy: round(one.jain_index, 4) for one in self.policies},
            "wait_s": first.waits,
            "scope": asdict(self.scope),
            "policies": {one.policy: _policy_json(one) for one in self.policies},
            "weighted_rates": self.weighted,
            "floods": [asdict(one) for one in self.floods],
            "starvation": [asdict(one) | {"is_kept": one.is_kept} for one in self.starvation],
            "fairness": [asdict(one) for one in self.modes],
            "overloads": [asdict(one) for one in self.overloads],
            "conversations": [asdict(one) for one in self.conversations],
            "scale": {one.policy: _scale_json(one) for one in self.scales},
        }

    def grids(self) -> Iterator[Grid]:
        yield self._waits()
        yield self._shares()
        yield self._floods()
        yield self._starvation()
        yield from self._fairness()
        yield self._overloads()
        yield self._conversations()
        yield self._passes()
        yield self._costs()

    def pictures(self) -> Mapping[str, str]:
        """SVG by file name."""
        return {
            "scheduling-waits.svg": self._draw_waits(),
            "scheduling-shares.svg": self._draw_shares(),
            "scheduling-preemption.svg": self._draw_preemption(),
            "scheduling-cost.svg": self._draw_costs(),
        }

    # Tables

    def _waits(self) -> Grid:
        rows = [
            (one.policy, name, str(found["n"]), *_figures(found), f"{one.tokens_per_s:.0f}")
            for one in self.policies
            for name, found in one.waits.items()
        ]
        columns = ("policy", "priority", "requests", *(f"{name} s" for name in _WAITS), "tokens/s in all")
        return Grid("From arrival to the first token, at 95 % load", columns, rows)

    def _shares(self) -> Grid:
        rows = [
            (one.policy, *_rates(one.rates), f"{one.served_ratio:.2f}", f"{one.jain_index:.3f}")
            for one in self.policies
        ]
        if self.weighted:
            ratio = self.weighted["heavy"] / self.weighted["light"]
            index = jain_index(self.weighted.values())
            rows.append(("fair, heavy has weight 2", *_rates(self.weighted), f"{ratio:.2f}", f"{index:.3f}"))
        columns = ("policy", "heavy /s", "light /s", "heavy ÷ light", "Jain's index")
        return Grid("Service per weight (prompt tokens + 2 x generated) while both wait", columns, rows)

    def _floods(self) -> Grid:
        rows = [(one.policy, f"{one.other_wait_s:.2f}", f"{one.tokens_per_s:.0f}") for one in self.floods]
        columns = ("policy", "other's first token s", "tokens/s in all")
        return Grid("Another tenant's request 1 s after a flood of 100", columns, rows)

    def _starvation(self) -> Grid:
        rows = [
            (
                one.mode.name,
                f"{one.overtaken_s:.2f}",
                f"{one.bound_s:.2f}",
                "yes" if one.is_kept else "NO",
                f"{one.waited_s:.2f}",
                f"{one.took_s:.2f}",
            )
            for one in self.starvation
        ]
        columns = ("preemption", "overtaken by, s later", "bound s", "kept", "waited s", "ended after s")
        return Grid("Priority 0 in a stream of priority 4 at 200 % load", columns, rows)

    def _fairness(self) -> Iterator[Grid]:
        rows = [
            (one.mode.name, what, name, str(found["n"]), *_figures(found))
            for one in self.modes
            for what, waits in (("first token", one.waits), ("end", one.whole))
            for name, found in waits.items()
        ]
        columns = ("preemption", "until", "priority", "requests", *(f"{name} s" for name in _WAITS))
        yield Grid("One in ten requests urgent, at 115 % load", columns, rows)
        base = self.modes[0]
        counts = [
            (
                one.mode.name,
                f"{one.first_token_ratio:.2f}",
                f"{one.ordinary_per_s / base.ordinary_per_s:.3f}",
                *map(str, (one.preempted, one.sliced, one.swapped)),
                f"{one.cluster_per_s / base.cluster_per_s:.3f}",
                str(one.moved),
            )
            for one in self.modes
        ]
        columns = (
            "preemption",
            "urgent ÷ alone",
            "ordinary ÷ off",
            "preempted",
            "sliced",
            "swapped",
            f"of {self.scope.cluster} workers: ordinary ÷ off",
            "moved",
        )
        yield Grid("What that costs", columns, counts)

    def _overloads(self) -> Grid:
        rows = [
            (
                f"{one.urgent:.0%}",
                f"{one.share:.2f}",
                *(f"{one.waits['9'][name]:.2f}" for name in ("p50", "p99")),
                f"{one.urgent_ratio:.2f}",
                f"{one.waits['0']['p50']:.1f}",
                f"{one.ordinary_part:.3f}",
                "-" if one.ordinary_ratio is None else f"{one.ordinary_ratio:.3f}",
                f"{one.tokens_per_s:.0f}",
            )
            for one in self.overloads
        ]
        columns = (
            "urgent",
            "guaranteed",
            "urgent p50 s",
            "p99 s",
            "p50 ÷ alone",
            "others p50 s",
            "others' part",
            "others ÷ without",
            "tokens/s",
        )
        return Grid("Minutes at 200 % load, preemption on", columns, rows)

    def _conversations(self) -> Grid:
        rows = [
            (
                str(one.setup.slots),
                "on" if one.setup.has_hints else "off",
                f"{one.setup.prefix_wait_s:g}",
                f"{one.computed_ratio:.2f}",
                f"{one.load_ratio:.2f}",
                f"{one.first_token_s:.3f}",
            )
            for one in self.conversations
        ]
        columns = (
            "slots",
            "hints",
            "longest wait s",
            "computed ÷ new tokens",
            "busier ÷ other worker",
            "later first token s",
        )
        return Grid(f"{CONVERSATIONS} conversations of {TURNS} turns on two workers", columns, rows)

    def _passes(self) -> Grid:
        rows = [
            (
                one.policy,
                f"{one.whole_pass.queued:,}",
                f"{one.whole_pass.workers:,}",
                f"{one.whole_pass.placements:,}",
                f"{one.whole_pass.seconds:.2f}",
                f"{one.whole_pass.placements_per_s:,.0f}",
                f"{one.exponent:+.3f}",
            )
            for one in self.scales
        ]
        columns = ("policy", "queued", "workers", "placed", "s", "placements/s", "cost exponent")
        return Grid("One pass over a long queue, all workers idle", columns, rows)

    def _costs(self) -> Grid:
        rows = [
            (
                one.policy,
                f"{cost.queued:,}",
                *(f"{s * 1e6:.1f}" for s in cost.seconds),
                f"{cost.per_s:,.0f}",
            )
            for one in self.scales
            for cost in one.costs
        ]
        columns = ("policy", "queued", "placement µs", "arrival µs", "end µs", "decisions/s")
        return Grid("What a decision costs, all workers busy", columns, rows)

    # Pictures

    def _draw_waits(self) -> str:
        rows = [
            charts.Range(f"{one.policy}, priority {name}", colour, w["p50"], w["p90"], w["p99"])
            for colour, one in enumerate(self.policies)
            for name, w in one.waits.items()
            if w["n"]
        ]
        return charts.ranges("Time to the first token at 95 % load", "seconds: p50, p90, p99", rows)

    def _draw_shares(self) -> str:
        rows = [
            charts.Bar(
                one.policy,
                colour,
                one.jain_index,
                f"{one.jain_index:.3f}, heavy ÷ light {one.served_ratio:.2f}",
            )
            for colour, one in enumerate(self.policies)
        ]
        title = "Jain's index of two tenants' service, one sends 10 x the other"
        return charts.bars(title, "1 is equal, 0.5 is all to one", rows, longest=1.0)

    def _draw_preemption(self) -> str:
        rows = [
            charts.Range(f"{one.mode.name}, priority {name}", colour, w["p50"], w["p90"], w["p99"])
            for colour, one in enumerate(self.modes)
            for name, w in one.waits.items()
            if w["n"]
        ]
        title = "Time to the first token, preemption off and on, one in ten urgent, at 115 % load"
        return charts.ranges(title, "seconds: p50, p90, p99", rows)

    def _draw_costs(self) -> str:
        rows = [
            charts.Line(
                f"{one.policy} ({one.exponent:+.3f})",
                colour,
                [(cost.queued, cost.placement_s * 1e6) for cost in one.costs],
            )
            for colour, one in enumerate(self.scales)
        ]
        title = "Cost of a placement as the queue grows (exponent)"
        return charts.lines(title, "requests queued", "µs of processor time per placement", rows)


def _figures(found: Waits) -> list[str]:
    return [f"{found[name]:.2f}" if name in found else "-" for name in _WAITS]


def _rates(rates: Mapping[str, float]) -> list[str]:
    return [f"{rates[tenant]:.0f}" for tenant in ("heavy", "light")]


def _policy_json(one: PolicyResult) -> dict[str, Any]:
    derived = {"jain_index": one.jain_index, "served_ratio": one.served_ratio}
    return asdict(one) | derived


def _scale_json(one: Scale) -> dict[str, Any]:
    derived = {"placements_per_s": one.whole_pass.placements_per_s, "cost_exponent": one.exponent}
    return asdict(one) | derived
