"""From a checked request to a job in the work queue."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import AlreadyExists, InferFluxError, InvalidArgument
from inferflux.v1 import generation_pb2, scheduler_pb2

# llama.cpp's own, and what generation.proto promises.
DEFAULT_SAMPLING = generation_pb2.SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repeat_penalty=1.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    penalty_last_n=64,
    typical_p=1.0,
    xtc_probability=0.0,
    xtc_threshold=0.1,
    dry_multiplier=0.0,
    dry_base=1.75,
    dry_allowed_length=2,
    dry_penalty_last_n=64,
    dry_sequence_breakers=generation_pb2.SequenceBreakers(texts=["\n", ":", '"', "*"]),
    dynatemp_range=0.0,
    dynatemp_exponent=1.0,
    top_n_sigma=0.0,
)

# Of a NATS message, for headers and what the scheduler adds to a job on its way.
_PAYLOAD_RESERVE_BYTES = 64 << 10


# Reasons of errors that mean that there is no job. After any other there may be one.
_REFUSED = frozenset({"REQUEST_ID_TAKEN", "QUEUE_FULL", "QUEUE_UNAVAILABLE", "STORE_UNAVAILABLE"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the field they came from, and the images that some of them stand for.

    Attributes:
        text: that they are of, where it is not to be told from them.
    """

    token_ids: Sequence[int]
    field: str
    images: Sequence[generation_pb2.PromptImage] = ()
    text: str | None = None


def resolve(
    params: generation_pb2.GenerationParams,
    *,
    prompt_tokens: int,
    context_length: int,
    choice: int = 0,
    deterministic: bool = False,
) -> generation_pb2.GenerationParams:
    """Set every optional field, so that a retry is the same request: defaults, a drawn seed, and max_tokens
    cut to what the context has left.

    Args:
        choice: see `CallContext`.
        deterministic: whether a request is that leaves it open; False: its model decides.
    """
    resolved = generation_pb2.GenerationParams()
    resolved.CopyFrom(params)
    resolved.sampling.CopyFrom(DEFAULT_SAMPLING)
    if params.sampling.HasField("dry_sequence_breakers"):  # else they were added to the default ones
        resolved.sampling.ClearField("dry_sequence_breakers")
    resolved.sampling.MergeFrom(params.sampling)
    has_seed = resolved.sampling.HasField("seed")
    seed = resolved.sampling.seed + choice if has_seed else secrets.randbits(63)
    resolved.sampling.seed = seed % 2**64
    for last_n in ("penalty_last_n", "dry_penalty_last_n"):
        if getattr(resolved.sampling, last_n) == -1:
            setattr(resolved.sampling, last_n, context_length)
    if deterministic and not params.HasField("deterministic"):
        resolved.deterministic = True
    left = context_length - prompt_tokens
    resolved.max_tokens = min(params.max_tokens, left) if params.HasField("max_tokens") else left
    return resolved


def new_call_id_prefix() -> str:
    """What the ids of an answer's tool calls begin with."""
    return f"call_{secrets.token_hex(10)}"


def is_refused(error: InferFluxError) -> bool:
    """Whether a submission that ended with this error has certainly put no job into the queue."""
    return error.reason in _REFUSED


class Submitter:
    """Puts jobs into the work queue."""

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

    async def submit(
        self, request: scheduler_pb2.InferenceRequest, payload: bytes, *, traceparent: str
    ) -> str:
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
    """What is said of a request id that another call has lately used."""
    message = f"the request id {request_id} was used already: use Resume to read its stream"
    return AlreadyExists(message, reason="REQUEST_ID_TAKEN")
