"""Jobs as the scheduler's queue holds them."""

from __future__ import annotations

from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.v1 import scheduler_pb2


def make_job(
    arrival: int,
    *,
    tenant: str = "acme",
    priority: int = 0,
    at: float = 0.0,
    prompt: int = 4,
    max_tokens: int = 4,
    deadline_s: float | None = None,
    model: str = "demo",
) -> Job:
    """A job that waits since `at`, and was enqueued then."""
    request = scheduler_pb2.InferenceRequest(
        request_id=f"r{arrival}",
        tenant=tenant,
        model=model,
        prompt_token_ids=[1] * prompt,
        priority=priority,
        enqueued_unix_ms=round(at * 1000),
        deadline_unix_ms=round((deadline_s or 0) * 1000),
        epoch=1,
    )
    request.params.max_tokens = max_tokens
    return Job(
        key=RequestKey(tenant, request.request_id),
        request=request,
        handle=None,
        sequence=arrival,
        arrival=arrival,
        enqueued_s=at,
        since_s=at,
        deadline_s=deadline_s,
        epoch=1,
        state=JobState.QUEUED,
    )
