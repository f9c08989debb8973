"""Reasons that policy gives for what guardrails say of a prompt."""

from __future__ import annotations

from typing import Final

CONTENT_FILTER: Final = "CONTENT_FILTER"
"""A blocked text or a pattern is in it."""
PROMPT_TOO_LARGE: Final = "PROMPT_TOO_LARGE"
"""Reason of a prompt with more characters or tokens than guardrails let pass."""
TEXT_NEEDED: Final = "GUARDRAILS_NEED_TEXT"
"""Reason of a prompt that was asked about without its text: ask again with it."""
