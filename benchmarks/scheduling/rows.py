"""The rows about scheduling: what is measured, against what target."""

from __future__ import annotations

import shlex
from typing import Any

from benchmarks.rows.table import Reading, Row

_FAILED = "requests"


def _none(key: str, title: str, unit: str) -> Row:
    return Row(key, title, 0.0, "<=", unit)


def _cancelled(phase: str) -> Row:
    return Row(
        f"cancel_{phase}_ms", f"cancelled while {phase}: longest until free, less a step", 50.0, "<=", "ms"
    )


_ROWS = [
    Row(
        "urgent_ttft_ratio",
        "urgent request behind 8 running and 32 queued: time to first token ÷ alone",
        2.0,
        "<=",
    ),
    Row("urgent_ttft_ratio_without", "the same without preemption", None, "<="),
    Row("mixed_throughput_ratio", "tokens/s while 1 in 10 requests is urgent, preemption on ÷ off", 0.95),
    Row("mixed_ordinary_ratio", "the same, tokens of ordinary requests alone", 0.95),
    Row(
        "mixed_urgent_ttft_ratio",
        "the urgent ones' time to first token, preemption on, p50 ÷ alone",
        3.0,
        "<=",
    ),
    Row(
        "mixed_urgent_ttft_on_p50_ms",
        "the urgent ones' time to first token, preemption on, p50",
        None,
        "<=",
        "ms",
    ),
    Row("mixed_urgent_ttft_on_p99_ms", "p99", None, "<=", "ms"),
    Row("mixed_urgent_ttft_off_p50_ms", "the same, preemption off, p50", None, "<=", "ms"),
    Row("mixed_urgent_ttft_off_p99_ms", "p99", None, "<=", "ms"),
    Row(
        "fair_share_ratio", "two tenants, one sends 10 x as much, policy `fair`: smaller share ÷ larger", 0.91
    ),
    Row("fair_share_ratio_weighted", "the same per weight, weights 1:2", 0.91),
    Row(
        "flood_other_ttft_s",
        "another tenant behind a flood of 100 streams: longest time to first token",
        None,
        "<=",
        "s",
    ),
    Row("flood_other_ttft_fcfs_s", "the same under `fcfs`", None, "<=", "s"),
    Row("flood_throughput_ratio", "tokens/s of the flood and the other, `priority` ÷ `fcfs`", 0.98),
    _none(
        "poison_others_failed",
        "a request that kills every engine, among 20 others: others failed",
        "requests",
    ),
    _none("poison_others_changed", "greedy texts changed, demo model", "texts"),
    Row("poison_others_longest_gap_s", "longest gap of a stream, demo model", None, "<=", "s"),
    _none("worker_killed_failed", "worker killed with 8 streams on it: failed", "requests"),
    _none("worker_killed_lost_or_doubled", "tokens lost or doubled", "tokens"),
    _none("worker_killed_changed", "greedy texts changed, demo model", "texts"),
    Row("worker_killed_noticed_s", "longest until the scheduler knows", 0.3, "<=", "s"),
    Row("worker_killed_longest_gap_s", "longest gap of a stream, bench model", 3.0, "<=", "s"),
    Row("worker_killed_demo_longest_gap_s", "longest gap of a stream, demo model", 5.0, "<=", "s"),
    _none("leader_killed_failed", "leading scheduler killed under load: failed", "requests"),
    _none("leader_killed_lost_or_doubled", "tokens lost or doubled", "tokens"),
    Row("leader_killed_gap_ratio", "longest gap of running streams ÷ their median before", 4.0, "<="),
    Row("leader_killed_admission_s", "longest until a new request has its first token", 3.0, "<=", "s"),
    _none(
        "nats_restarted_failed_queued",
        "nats-server killed and started under load: failed of the queued",
        "requests",
    ),
    _none("nats_restarted_failed_running", "failed of the running", "requests"),
    _none("nats_restarted_lost_or_doubled", "tokens lost or doubled", "tokens"),
    Row("nats_restarted_longest_gap_s", "longest gap of a stream", None, "<=", "s"),
    *(_cancelled(phase) for phase in ("queued", "prefilling", "decoding", "parked", "swapped")),
]

ROWS: dict[str, Row] = {row.key: row for row in _ROWS}
"""Every row by its key, in the order of the table."""


def reading(key: str, value: float, **raw: Any) -> Reading:
    """A row's figure, and what it was made of; `each` are the figures it is the median or the worst of."""
    if "each" in raw:
        raw["each"] = [round(one, 4) for one in raw["each"]]
    command = shlex.join(["python", "-m", "benchmarks.scheduling", "--only", key])
    return Reading(ROWS[key], value, raw, (command,))
