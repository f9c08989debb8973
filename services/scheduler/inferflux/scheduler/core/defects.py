"""Handling of an exception raised by the core: no request may stop the others (pure).

The core keeps nothing that it could not learn again: jobs come again from the work queue, and workers list
what they run in heartbeats. So after an exception its state is not trusted any more. The request that was
being handled ends by name, and the leader begins anew with an empty core.
"""

from __future__ import annotations

from inferflux.common.contract.errors import Internal

# A scheduler whose core raised is not ready for this long.
QUIET_S = 5.0


def unschedulable(error: BaseException) -> Internal:
    """Error for the client of a request over which the core raised."""
    message = f"the scheduler failed over this request: {type(error).__name__}"
    return Internal(message, reason="SCHEDULER_FAILED")


class PlanningHealth:
    """Health of planning: it works unless it raised within the last `QUIET_S` seconds."""

    def __init__(self) -> None:
        self._failed_s = float("-inf")
        self._what = ""

    def failed(self, what: str, now: float) -> None:
        """`what` raised at `now`, in seconds of any steady clock."""
        self._failed_s, self._what = now, what

    def condition(self, now: float) -> tuple[bool, str]:
        """Return whether planning counts as working, and the reason if it does not."""
        if now - self._failed_s >= QUIET_S:
            return True, ""
        return False, f"planning failed: {self._what}"
