"""The call that a generation answers."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import Message

from inferflux.common.calls.calls import CallContext
from inferflux.common.contract import attempts, subjects
from inferflux.common.tracing import Span
from inferflux.gateway.policy.caller import Caller


@dataclass(frozen=True, slots=True)
class Call:
    """A call that policy has admitted.

    Attributes:
        model: as the client named it; empty for Resume.
        request_id: of the generation, which for Resume is not that of the call.
        span: of the call.
    """

    method: str
    model: str
    request_id: str
    caller: Caller
    span: Span
    context: CallContext

    def new_attempt_id(self, asked: Message) -> str:
        """Of a job that answers the call, which asks for this."""
        idempotency_key = self.context.idempotency_key
        if not idempotency_key:
            return attempts.new()
        return attempts.new(
            caller=self.caller.key_id,
            idempotency_key=idempotency_key,
            asked=asked.SerializeToString(deterministic=True),
        )

    @property
    def subject(self) -> str:
        return subjects.tokens(self.caller.tenant, self.request_id)
