"""Which constraints are taken at all: one definition for gateway, scheduler and worker (pure).

| field | allowed |
|---|---|
| any text, all choices together | 1 to 16,384 bytes |
| params.constraint.choice.texts | 1 to 1,000, each 1 byte or more |

A constraint decides where the answer ends. So it excludes `stop`, `stop_token_ids` and `ignore_eos`.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.errors import InvalidArgument
from inferflux.v1 import generation_pb2

FIELD = "params.constraint"
MAX_BYTES = 16 << 10
MAX_CHOICES = 1000


def check_constraint(params: generation_pb2.GenerationParams) -> None:
    """Check size and company of a constraint; what its text says is checked where it is compiled.

    Raises:
        InvalidArgument: naming the field.
    """
    if not params.HasField("constraint"):
        return
    kind = params.constraint.WhichOneof("constraint")
    if kind is None:
        raise InvalidArgument("the constraint is empty: set one of its fields", field=FIELD)
    field = field_of(params.constraint)
    if kind == "json_object":
        if not params.constraint.json_object:
            raise InvalidArgument("json_object is true or not set", field=field)
    elif kind == "choice":
        _check_choices(params.constraint.choice.texts, f"{field}.texts")
    else:
        _check_size(len(getattr(params.constraint, kind).encode()), field)
    _check_company(params)


def field_of(constraint: generation_pb2.StructuredConstraint) -> str:
    """The field of a request that errors about this constraint name."""
    kind = constraint.WhichOneof("constraint")
    return f"{FIELD}.{kind}" if kind else FIELD


def _check_size(size: int, field: str) -> None:
    if not 1 <= size <= MAX_BYTES:
        message = f"{field.rpartition('.')[2]} has 1 to {MAX_BYTES} bytes, not {size}"
        raise InvalidArgument(message, field=field, reason="CONSTRAINT_TOO_LARGE" if size else "")


def _check_choices(choices: Sequence[str], field: str) -> None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        message = f"{len(choices)} choices; 1 to {MAX_CHOICES} are taken"
        raise InvalidArgument(message, field=field, reason="CONSTRAINT_TOO_LARGE" if choices else "")
    for i, text in enumerate(choices):
        if not text:
            raise InvalidArgument("a choice is empty", field=f"{field}[{i}]")
    _check_size(sum(len(text.encode()) for text in choices), field)


def _check_company(params: generation_pb2.GenerationParams) -> None:
    for name in ("stop", "stop_token_ids", "ignore_eos"):
        if getattr(params, name):
            message = f"{name} does not go together with a constraint, which decides where the answer ends"
            raise InvalidArgument(message, field=f"params.{name}")
