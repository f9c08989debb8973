"""What ends a run of a fleet."""

from __future__ import annotations


class FleetError(Exception):
    """The fleet did not come up, or did not come back."""
