"""Jobs from the work queue into the core."""

from __future__ import annotations

import asyncio
from typing import Protocol

from google.protobuf.message import DecodeError

from inferflux.common import logs, subjects
from inferflux.common.bus import Job, JobConsumer
from inferflux.common.errors import InferFluxError, InvalidArgument
from inferflux.v1 import scheduler_pb2

from .metrics import SchedulerMetrics
from .spans import traceparent_of

log = logs.get("scheduler.intake")

# Gateways bound it tighter.
_LONGEST_WINDOW_S = 86_400
# Jobs taken in before everything else gets its turn.
_BURST = 128


class JobSink(Protocol):
    def on_job(self, request: scheduler_pb2.InferenceRequest, job: Job) -> None: ...
    async def on_bad_job(self, request: scheduler_pb2.InferenceRequest, error: InvalidArgument) -> None: ...


def parse(data: bytes) -> scheduler_pb2.InferenceRequest:
    """Decode a job.

    Raises:
        InvalidArgument: it cannot be decoded, or not even be answered: who asked is missing.
    """
    try:
        request = scheduler_pb2.InferenceRequest.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"not an InferenceRequest: {error}", reason="UNDECODABLE") from None
    for field in ("request_id", "tenant"):
        if not subjects.is_safe_token(getattr(request, field)):
            raise InvalidArgument(f"{field} is missing or has characters it may not have", field=field)
    return request


def check(request: scheduler_pb2.InferenceRequest) -> None:
    """See that a job can be scheduled.

    Raises:
        InvalidArgument: naming the field.
    """
    if not request.model:
        raise InvalidArgument("model is empty", field="model")
    if not request.prompt_token_ids:
        raise InvalidArgument("prompt_token_ids is empty", field="prompt_token_ids")
    if request.attempt_id and not subjects.is_safe_token(request.attempt_id):
        raise InvalidArgument("attempt_id has characters it may not have", field="attempt_id")
    if request.resume_window_s > _LONGEST_WINDOW_S:
        message = f"a resume window is at most {_LONGEST_WINDOW_S} s"
        raise InvalidArgument(message, field="resume_window_s")
    if request.params.max_tokens < 0:
        raise InvalidArgument("params.max_tokens is negative", field="params.max_tokens")


async def take_in(jobs: JobConsumer, sink: JobSink, metrics: SchedulerMetrics) -> None:
    """Hand every job on, for ever. Bad ones are taken off the queue; they never stop the others.

    Raises:
        Unavailable: another scheduler has taken the queue over.
    """
    burst = 0
    async for job in jobs:
        try:
            request = parse(job.data)
            try:
                check(request)
            except InvalidArgument as error:
                await sink.on_bad_job(request, error)
                raise
        except InvalidArgument as error:
            metrics.bad_messages.labels("job").inc()
            log.error("a bad job was taken off the queue", error=error.message, sequence=job.sequence)
            await _terminate(job)
        else:
            request.traceparent = traceparent_of(job)
            sink.on_job(request, job)
        burst += 1
        if burst % _BURST == 0:
            await asyncio.sleep(0)


async def _terminate(job: Job) -> None:
    try:
        await job.term()
    except InferFluxError as error:
        log.warning("a bad job could not be taken off the queue", reason=error.reason)
