"""Measurements, and the rows that each gives."""

from __future__ import annotations

from benchmarks.rows.scenarios import Scenario

from . import cancels, failover, flood, shares, urgent
from .ground import Bench
from .rows import ROWS


def _keys(prefix: str) -> tuple[str, ...]:
    return tuple(key for key in ROWS if key.startswith(prefix))


SCENARIOS: tuple[Scenario[Bench], ...] = (
    Scenario(_keys("urgent_"), urgent.urgent),
    Scenario(_keys("mixed_"), urgent.mixed),
    Scenario(("fair_share_ratio",), shares.equal),
    Scenario(("fair_share_ratio_weighted",), shares.weighted),
    Scenario(_keys("flood_"), flood.flood),
    Scenario(_keys("poison_"), flood.poison),
    Scenario(_keys("worker_killed_"), failover.worker),
    Scenario(_keys("leader_killed_"), failover.leader),
    Scenario(_keys("nats_restarted_"), failover.nats),
    Scenario(
        tuple(f"cancel_{p}_ms" for p in ("queued", "prefilling", "decoding", "parked")), cancels.with_room
    ),
    Scenario(("cancel_swapped_ms",), cancels.without_room),
)
