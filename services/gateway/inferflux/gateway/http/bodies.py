"""Bodies of calls, parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from .errors import of_validation
from .openai.bodies import Body

_B = TypeVar("_B", bound=Body)
_R = TypeVar("_R")

# Parsing a larger body takes milliseconds, in several steps.
LARGE_BYTES = 256 << 10


async def off_loop_if_large(body: bytes, work: Callable[[], _R], *, above: int = LARGE_BYTES) -> _R:
    """Do pure work on a body. A thread does it for a large one: the loop serves other calls between steps.

    Args:
        above: how many bytes are not large yet.
    """
    return await asyncio.to_thread(work) if len(body) > above else work()


def parse(kind: type[_B], body: bytes) -> _B:
    """The body as one of OpenAI's.

    Raises:
        InvalidArgument: it is no JSON, or a field has a wrong type.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from None
