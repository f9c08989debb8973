"""Sharing of a number of places among tenants (pure)."""

from __future__ import annotations

# A tenant alone leaves this part of the places to newcomers, and at least one.
_RESERVE_PART = 16


def may_have_more(held: int, *, free: int, size: int, is_alone: bool) -> bool:
    """True if a tenant may have one more place.

    Beside others it may have as many as it leaves free, so that there is always one for another tenant.

    Args:
        held: places that the tenant has.
        free: places that are not taken.
        size: places in all.
        is_alone: no other tenant has a place.
    """
    if free <= 0:
        return False
    if held == 0:
        return True
    return free > max(1, size // _RESERVE_PART) if is_alone else held < free
