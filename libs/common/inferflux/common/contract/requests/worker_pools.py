"""Pools that workers are divided into, and those whose workers a request may run on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from inferflux.common.contract.checks import check_count, check_token

DEFAULT = "default"
"""Pool of workers that name none."""
MAX_POOLS = 16


def may_run_in(pool: str, allowed: Collection[str]) -> bool:
    """True if a request may run on workers of a pool.

    Args:
        allowed: pools that it is held to; empty: every worker.
    """
    return not allowed or pool in allowed


def parse_pools(names: Iterable[str], *, field: str = "worker_pools") -> tuple[str, ...]:
    """The pools, once each.

    Raises:
        InvalidArgument: one could be no pool, or there are too many.
    """
    pools = tuple(dict.fromkeys(names))
    check_count(pools, MAX_POOLS, field)
    for i, pool in enumerate(pools):
        check_token(pool, f"{field}[{i}]")
    return pools
