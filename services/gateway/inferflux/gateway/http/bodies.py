"""Bodies of calls, parsed."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from .errors import of_validation
from .openai.bodies import Body

_B = TypeVar("_B", bound=Body)


def parse(kind: type[_B], body: bytes) -> _B:
    """The body as one of OpenAI's.

    Raises:
        InvalidArgument: it is no JSON, or a field has a wrong type.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from None
