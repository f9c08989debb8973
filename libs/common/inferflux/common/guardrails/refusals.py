"""Reasons that policy gives for what guardrails say of a prompt, and what follows from them."""

from __future__ import annotations

from typing import Final

from inferflux.common import grpc_metadata
from inferflux.common.errors import InferFluxError

CONTENT_FILTER: Final = "CONTENT_FILTER"
"""A blocked text or a pattern is in it."""
PROMPT_TOO_LARGE: Final = "PROMPT_TOO_LARGE"
"""It has more characters or tokens than guardrails let pass."""
TEXT_NEEDED: Final = "GUARDRAILS_NEED_TEXT"
"""It was asked about without its text: ask again with it."""


def rule_of(error: InferFluxError) -> str:
    """The rule that a prompt has broken, as the audit line names it; "" for other errors."""
    return error.headers.get(grpc_metadata.GUARDRAIL, "")
