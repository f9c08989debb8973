"""The part of the models in a gateway's health (pure)."""

from __future__ import annotations

from dataclasses import dataclass

# An engine that died has loaded its model again by then, and a worker that is replaced is there again.
# Requests wait in the queue meanwhile, so the gateway stays ready.
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelTally:
    """How many models are in which state, each counted once, by its best state.

    Attributes:
        registered: those that a request has loaded.
        pinned_missing: pinned models that are not ready.
        pinned_failed: those of them that failed.
        mixed: names for which hosts have different files.
    """

    ready: int = 0
    registered: int = 0
    loading: int = 0
    failed: int = 0
    pinned_missing: int = 0
    pinned_failed: int = 0
    mixed: tuple[str, ...] = ()

    @property
    def can_serve(self) -> bool:
        """Return whether a request can be served, if need be after it had its model loaded."""
        return self.ready > 0 or self.registered > 0


class ModelHealth:
    """Follows what `ModelTally` says. Texts have numbers and no names: strangers read them."""

    def __init__(self) -> None:
        self._served_s: float | None = None
        self._tally = ModelTally()

    def take(self, tally: ModelTally, now: float) -> None:
        """Take the state of the models at `now`, a monotonic time in seconds."""
        self._tally = tally
        if tally.can_serve:
            self._served_s = now

    def why_not_ready(self, now: float) -> str:
        """Why no request can be served; "" if one can, or could a moment ago."""
        if self._served_s is not None and now - self._served_s < GRACE_S:
            return ""
        tally = self._tally
        parts = [(tally.loading, "loading"), (tally.failed, "failed")]
        counts = ", ".join(f"{count} {state}" for count, state in parts if count)
        return f"no model is ready: {counts or 'none is known'}"

    @property
    def mixed(self) -> tuple[str, ...]:
        """Names for which hosts have different files."""
        return self._tally.mixed

    @property
    def warning(self) -> str:
        """Say what is wrong with models although others may be served; "" if nothing is."""
        tally = self._tally
        said = [
            (tally.ready + tally.registered == 0, "no model is ready"),
            (tally.pinned_failed, f"pinned models that failed: {tally.pinned_failed}"),
            (
                tally.pinned_missing - tally.pinned_failed,
                f"pinned models that are not ready yet: {tally.pinned_missing - tally.pinned_failed}",
            ),
            (tally.mixed, f"names that stand for different files on different hosts: {len(tally.mixed)}"),
        ]
        return "; ".join(text for is_so, text in said if is_so)
