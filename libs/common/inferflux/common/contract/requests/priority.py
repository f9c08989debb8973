"""The range of priorities. Higher is more urgent; 0 is ordinary."""

from __future__ import annotations

from typing import Final

LOWEST: Final = -100
HIGHEST: Final = 100
AGING_S: Final = 2.0
"""Waiting this long is worth one level, for a place at the gateway and in the scheduler's queue alike."""
