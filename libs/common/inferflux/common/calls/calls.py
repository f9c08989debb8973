"""A call as any front of a service sees it, whatever protocol it came by."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from inferflux.common.contract.errors import InferFluxError, Unauthenticated
from inferflux.common.tracing.context import valid

from . import grpc_metadata

# Of an address that a trusted proxy has written.
_MOST_OF_AN_ADDRESS = 64
# Further away than this is no deadline.
_LONGEST_DEADLINE_S = 10 * 365 * 86400.0


@dataclass(slots=True)
class CallRecord:
    """Record of a call for its audit line, filled while the call is served.

    Attributes:
        tenant: of the caller; "" before it is known whose credential it has, as is the next.
        key_id: of the caller.
        about: more fields of the line.
        is_change: whether it changes something of the whole, or would have.
        is_written: whether what serves the call writes its lines; otherwise its front does.
    """

    tenant: str = ""
    key_id: str = ""
    about: dict[str, object] = field(default_factory=dict)
    is_change: bool = False
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class CallContext:
    """Context of a call: what came with it beside its message.

    A disconnect is no field: the front cancels the task that serves the call.

    Attributes:
        request_id: the client's, or a drawn one.
        is_id_chosen: the request id is the client's, who may choose the same one twice.
        credential: the API key as it was given; "" without one, or with several that differ.
        has_several: several that differ were given.
        service_key: what a service proves itself with; "" without one.
        certificate: the common name of the certificate that the caller has shown and that was verified; ""
            without one.
        traceparent: of the client's span; "" without one, and for a header that is none.
        deadline_at: when the client gives up, monotonic, in seconds; infinite if it does not.
        started_at: when the call came, monotonic, in seconds.
        same_prompt_as: the request id of another choice of the call, whose prompt is computed; "" for none.
        choice: among those of one prompt, the first being 0: it draws with the request's seed plus this.
        record: what the call's audit line is to say; choices of one call share it.
        idempotency_key: the same each time that the call is sent; "" without one.
        is_counted: its method counts against request limits.
        announced_priority: that the client says ahead of its body; 0 where it says none.
        method: `InferenceService/Chat`, or `POST /v1/chat/completions`; "" before it is known.
    """

    request_id: str
    is_id_chosen: bool = False
    credential: str = field(default="", repr=False)
    has_several: bool = False
    service_key: str = field(default="", repr=False)
    certificate: str = ""
    traceparent: str = ""
    deadline_at: float = math.inf
    started_at: float = 0.0
    same_prompt_as: str = ""
    choice: int = 0
    record: CallRecord = field(default_factory=CallRecord, compare=False, repr=False)
    idempotency_key: str = field(default="", repr=False)
    is_counted: bool = False
    announced_priority: int = 0
    method: str = ""

    def require_credential(self) -> str:
        """The API key.

        Raises:
            Unauthenticated: the call came without one, or with several.
        """
        if self.has_several:
            message = (
                "several different API keys: send one, as `authorization: Bearer KEY` or `x-api-key: KEY`"
            )
            raise Unauthenticated(message, reason="SEVERAL_CREDENTIALS")
        if not self.credential:
            message = "no API key: send `authorization: Bearer KEY` or `x-api-key: KEY`"
            raise Unauthenticated(message, reason="NO_CREDENTIAL")
        return self.credential


def unread_context(client: str) -> CallContext:
    """The context of a call that came now, before anything is read that came with it.

    Args:
        client: the address of who calls, for the audit line; "" where it has none.
    """
    about: dict[str, object] = {"client": client[:_MOST_OF_AN_ADDRESS]} if client else {}
    return CallContext(request_id="", record=CallRecord(about=about))


def note_holder(record: CallRecord, refusal: InferFluxError) -> None:
    """Have the audit line of a refused call say whose credential it had, where policy has said so. The caller
    is not told.
    """
    told = dict(refusal.headers)
    record.tenant = told.pop(grpc_metadata.TENANT, record.tenant)
    record.key_id = told.pop(grpc_metadata.KEY_ID, record.key_id)
    refusal.headers = told


def call_context(
    metadata: grpc_metadata.Metadata | None,
    *,
    remaining_s: float | None,
    certificate: str = "",
    record: CallRecord | None = None,
) -> CallContext:
    """The context of a call that came now, from its gRPC metadata or HTTP headers, with lower-case names.

    Args:
        remaining_s: how long the client waits; None: for ever.
        certificate: the common name of what it has shown.
        record: of the call's audit line; None: a new one.

    Raises:
        InvalidArgument: the request id holds other characters than A-Z a-z 0-9 _ -, or more than 64, or the
            priority is none.
    """
    pairs = list(metadata or ())
    credentials = grpc_metadata.credentials(pairs)
    return CallContext(
        request_id=grpc_metadata.request_id(pairs),
        is_id_chosen=bool(grpc_metadata.get(pairs, grpc_metadata.REQUEST_ID)),
        credential=credentials[0] if len(credentials) == 1 else "",
        has_several=len(credentials) > 1,
        service_key=grpc_metadata.get(pairs, grpc_metadata.SERVICE_KEY),
        certificate=certificate,
        traceparent=valid(grpc_metadata.get(pairs, grpc_metadata.TRACEPARENT)),
        announced_priority=grpc_metadata.priority(pairs),
        idempotency_key=grpc_metadata.get(pairs, grpc_metadata.IDEMPOTENCY_KEY),
        deadline_at=_deadline_at(remaining_s),
        started_at=time.monotonic(),
        record=record or CallRecord(),
    )


def _deadline_at(remaining_s: float | None) -> float:
    if remaining_s is None or remaining_s > _LONGEST_DEADLINE_S:
        return math.inf
    return time.monotonic() + remaining_s
