"""One log line per admitted request: the record of which key did what. It holds no prompt and no answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from inferflux.common import logs

log = logs.get("audit")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What became of a request.

    Attributes:
        outcome: finish reason or error reason, lower case.
        duration_ms: from the call to its end.
    """

    method: str
    tenant: str
    key_id: str
    request_id: str
    model: str
    outcome: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    duration_ms: float


def write(record: AuditRecord) -> None:
    log.info("audit", **asdict(record))
