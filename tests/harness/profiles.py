"""Hypothesis's two profiles: `quick`, of `make test`, and `whole`, of `make test-all`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

QUICK, WHOLE = "quick", "whole"
_FEWEST = 20


def register() -> None:
    """Register both, and load `quick`: `--hypothesis-profile=whole` loads the other before tests are read."""
    for name in (QUICK, WHOLE):
        # How long an example takes says how busy the machine is.
        settings.register_profile(name, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile(QUICK)


def examples(whole: int, *, fewest: int = _FEWEST) -> int:
    """Examples of a test that has `whole` of them in that profile: a fifth, `fewest` or more, in `quick`."""
    is_whole = settings.get_current_profile_name() == WHOLE
    return whole if is_whole else min(whole, max(fewest, whole // 5))
