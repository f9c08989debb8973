"""The RPCs of administrators, as every protocol serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Reply = Awaitable[Message] | AsyncIterator[Message]


@dataclass(frozen=True, slots=True)
class AdminMethod:
    """One RPC.

    Attributes:
        path: its full name, `/SERVICE/METHOD`.
        request: the class of the message that it takes.
        answer: the class of the message, or of each message, that it gives.
        call: serves it; its second argument is the RPC's context, which it does not use.
    """

    path: str
    request: type[Message]
    answer: type[Message]
    call: Callable[[Any, Any], Reply]

    @classmethod
    def of(cls, method: MethodDescriptor, call: Callable[[Any, Any], Reply]) -> Self:
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        return cls(f"/{method.containing_service.full_name}/{method.name}", request, answer, call)

    @property
    def name(self) -> str:
        """Its name alone."""
        return self.path.rpartition("/")[2]


def methods_of(service: ServiceDescriptor, servicer: object) -> Iterator[AdminMethod]:
    """All RPCs of a service, as a servicer serves them."""
    for method in service.methods:
        yield AdminMethod.of(method, getattr(servicer, method.name))
