"""Checks of formats of answers that other processes send (pure)."""

from __future__ import annotations

from typing import Final

from inferflux.common.contract import checks
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import generation_pb2

from .answer_spelling import spelling_of
from .constraint_limits import MAX_FUNCTIONS

MAX_SYNTAX_BYTES: Final = 16 << 10


def check_format(form: generation_pb2.AnswerFormat, field: str) -> None:
    """An answer can be read by it.

    Raises:
        InvalidArgument: naming what is wrong of `field`.
    """
    checks.check_count(form.functions, MAX_FUNCTIONS, f"{field}.functions")
    checks.check_count(form.types, MAX_FUNCTIONS, f"{field}.types")
    size = form.syntax.ByteSize() + len(form.prefix)
    if size > MAX_SYNTAX_BYTES:
        message = f"{field}.syntax has {size} bytes; at most {MAX_SYNTAX_BYTES}"
        raise InvalidArgument(message, field=f"{field}.syntax")
    if form.syntax.HasField("calls"):
        try:
            spelling_of(form.syntax.calls)
        except (ValueError, RecursionError) as error:
            message = f"{field}.syntax.calls: {str(error)[:200]}"
            raise InvalidArgument(message, field=f"{field}.syntax.calls") from None
