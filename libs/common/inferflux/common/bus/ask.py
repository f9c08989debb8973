"""One question over NATS and its answer, both protobuf."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from inferflux.common.contract import checks
from inferflux.common.contract.errors import InvalidArgument, Unavailable

from . import Bus

_Answer = TypeVar("_Answer", bound=Message)


async def ask(bus: Bus, subject: str, question: Message, kind: type[_Answer], *, timeout_s: float) -> _Answer:
    """Send a question; return the answer, whose fields may still hold anything.

    Raises:
        DeadlineExceeded: none came within `timeout_s`.
        Unavailable: nothing listens, or NATS is away; with reason BAD_ANSWER, the answer is not of this kind.
    """
    data = await bus.request(subject, question.SerializeToString(), timeout_s=timeout_s)
    try:
        return checks.decode(kind, data)
    except InvalidArgument:
        raise Unavailable("it answered something else", reason="BAD_ANSWER") from None
