"""How many choices one call may ask for."""

from __future__ import annotations

from inferflux.common.contract.errors import InvalidArgument

# Of a call: OpenAI's bound of `n`.
MAX_CHOICES = 128


def check_choices(*, prompts: int, n: int) -> None:
    """Raises:
    InvalidArgument: there are too many.
    """
    if prompts * n > MAX_CHOICES:
        message = f"{prompts} prompts, {n} choices each; at most {MAX_CHOICES} in all"
        raise InvalidArgument(message, field="n" if n > 1 else "prompt")
