"""The range of priorities. Higher is more urgent; 0 is ordinary."""

from __future__ import annotations

from typing import Final

LOWEST: Final = -100
HIGHEST: Final = 100
