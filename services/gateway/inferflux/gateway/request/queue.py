"""The work queue in NATS, where jobs wait for the scheduler."""

from __future__ import annotations

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import AlreadyExists, InferFluxError, InvalidArgument
from inferflux.v1 import scheduler_pb2

# Of a NATS message, for headers and what the scheduler adds to a job on its way.
_PAYLOAD_RESERVE_BYTES = 64 << 10
# Reasons of errors that mean that there is no job. After any other there may be one.
_REFUSED = frozenset({"REQUEST_ID_TAKEN", "QUEUE_FULL", "QUEUE_UNAVAILABLE", "STORE_UNAVAILABLE"})


def is_refused(error: InferFluxError) -> bool:
    """True if this error of `put` means that no job is in the queue."""
    return error.reason in _REFUSED


class JobQueue:
    """The work queue, as the gateway fills it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def check_size(self, payload: bytes, field: str) -> None:
        """Raises:
        InvalidArgument: the job is larger than a NATS message may be.
        """
        limit = self._bus.max_payload - _PAYLOAD_RESERVE_BYTES
        if len(payload) > limit:
            message = f"the request takes {len(payload)} bytes; NATS is set to messages of at most {limit}"
            raise InvalidArgument(message, field=field, reason="REQUEST_TOO_LARGE")

    def check_open(self) -> None:
        """Raises:
        Unavailable: NATS does not write jobs at present.
        """
        self._bus.check_queue()

    async def put(self, request: scheduler_pb2.InferenceRequest, payload: bytes, *, traceparent: str) -> str:
        """Put a job into the queue.

        Returns:
            The attempt of the job that is there: another one where the same call was sent before.

        Raises:
            AlreadyExists: the tenant has used this request id lately.
            ResourceExhausted: the queue is full.
            Unavailable: JetStream does not answer; the job may be in the queue all the same.
        """
        headers = {"traceparent": traceparent} if traceparent else None
        attempt = await self._bus.enqueue(
            subjects.jobs(request.model),
            payload,
            msg_id=f"{request.tenant}.{request.request_id}",
            attempt=request.attempt_id,
            headers=headers,
        )
        if not attempt:
            raise taken(request.request_id)
        return attempt


def taken(request_id: str) -> AlreadyExists:
    """The error for a request id that another call has lately used."""
    message = f"the request id {request_id} was used already: use Resume to read its stream"
    return AlreadyExists(message, reason="REQUEST_ID_TAKEN")
