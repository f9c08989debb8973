"""The call that a generation answers."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common import subjects
from inferflux.common.calls import CallContext
from inferflux.common.tracing import Span

from .caller import Caller


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

    @property
    def subject(self) -> str:
        return subjects.tokens(self.caller.tenant, self.request_id)
