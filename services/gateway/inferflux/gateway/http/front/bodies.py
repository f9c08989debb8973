"""Bodies of calls: what all have in common, and how they are parsed."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from inferflux.gateway.http.errors.errors import of_validation

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
_Item = TypeVar("_Item")


class _FailFast(FailFast):
    """Can be a part of a union."""

    __hash__ = object.__hash__


# An error for each of a million items would take much memory, and one is told.
Items = Annotated[list[_Item], _FailFast()]


class Body(BaseModel):
    """Strict: a number is no string, and NaN is no number."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)


_B = TypeVar("_B", bound=Body)


def parse(kind: type[_B], body: bytes) -> _B:
    """The body as one of a kind.

    Raises:
        InvalidArgument: it is no JSON, or a field has a wrong type.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from None
