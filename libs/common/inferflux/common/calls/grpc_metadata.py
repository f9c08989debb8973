"""gRPC metadata keys that InferFlux reads and writes, on both sides."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST

REQUEST_ID = "x-request-id"
AUTHORIZATION = "authorization"
API_KEY = "x-api-key"
TRACEPARENT = "traceparent"
SERVICE_KEY = "x-inferflux-service-key"
# The priority that a request asks for, ahead of its body. Trailing: the one that it got, where its key may
# not have as much.
PRIORITY = "x-inferflux-priority"
# The same for each time that a caller sends one call.
IDEMPOTENCY_KEY = "idempotency-key"
# Of a refusal: the rule that the prompt has broken.
GUARDRAIL = "x-inferflux-guardrail"
# Of a refusal: the decision backend that refused, and its reason.
DECISION = "x-inferflux-decision"
# Of a refusal by policy: whose credential it was. Gateways put it into their audit lines, and tell no caller.
TENANT = "x-inferflux-tenant"
KEY_ID = "x-inferflux-key-id"

Metadata = Iterable[tuple[str, str | bytes]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4}")


def get(metadata: Metadata | None, key: str) -> str:
    """The first value of a text key, or ""."""
    for name, value in metadata or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def request_id(metadata: Metadata | None) -> str:
    """The caller's request id, or a new one.

    Raises:
        InvalidArgument: the caller's holds other characters than A-Z a-z 0-9 _ -, or more than 64.
    """
    given = get(metadata, REQUEST_ID)
    if not given:
        return new_request_id()
    if _REQUEST_ID.fullmatch(given) is None:
        raise InvalidArgument("x-request-id must be 1 to 64 of A-Z a-z 0-9 _ -", field=REQUEST_ID)
    return given


def new_request_id() -> str:
    return secrets.token_hex(12)


def priority(metadata: Metadata | None) -> int:
    """The priority that is announced; 0 without one.

    Raises:
        InvalidArgument: it is none.
    """
    given = get(metadata, PRIORITY)
    if not given:
        return 0
    if _INTEGER.fullmatch(given) is None or not LOWEST <= int(given) <= HIGHEST:
        raise InvalidArgument(f"{PRIORITY} must be {LOWEST} to {HIGHEST}", field="priority")
    return int(given)


def credentials(metadata: Metadata | None) -> list[str]:
    """The API keys or tokens in `authorization: Bearer KEY` and `x-api-key: KEY`, each once."""
    found: dict[str, None] = {}
    for name, value in metadata or ():
        if name not in (AUTHORIZATION, API_KEY):
            continue
        text = value if isinstance(value, str) else value.decode("utf-8", "replace")
        if name == AUTHORIZATION:
            scheme, _, text = text.partition(" ")
            if scheme.lower() != "bearer":
                continue
        if text.strip():
            found[text.strip()] = None
    return list(found)


def outgoing(
    *,
    api_key: str = "",
    request_id: str = "",
    traceparent: str = "",
    service_key: str = "",
    priority: int = 0,
) -> tuple[tuple[str, str], ...]:
    """Metadata for a call; empty values, and priority 0, are left out."""
    pairs = (
        (AUTHORIZATION, f"Bearer {api_key}" if api_key else ""),
        (REQUEST_ID, request_id),
        (TRACEPARENT, traceparent),
        (SERVICE_KEY, service_key),
        (PRIORITY, str(priority) if priority else ""),
    )
    return tuple((key, value) for key, value in pairs if value)
