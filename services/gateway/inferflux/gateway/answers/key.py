"""Requests that have the same answer, and the name of that answer (pure)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.prefixes.hashes import joined
from inferflux.v1 import generation_pb2, scheduler_pb2

# Bytes of a name.
NAME_BYTES = 32

# Of what is kept: raised whenever an older answer must not be read any more.
_VERSION = "1"

# What of a job does not decide its answer. Everything else does, fields that come later included.
IRRELEVANT: Final = frozenset(
    {
        "request_id",
        "priority",
        "enqueued_unix_ms",
        "deadline_unix_ms",
        "epoch",
        "traceparent",
        "resume_window_s",
        "attempt_id",
        "same_prompt_as",
        # They are in the scope.
        "tenant",
        "cache_scope",
    }
)

# The same of its answer format.
IRRELEVANT_OF_FORMAT: Final = frozenset({"functions", "is_exact", "call_id_prefix", "types"})


def is_repeatable(params: generation_pb2.GenerationParams) -> bool:
    """Return whether the caller asks for one certain answer: a greedy one, or the one of a seed.

    Args:
        params: as the caller sent them. Resolved ones always have a seed.
    """
    sampling = params.sampling
    is_greedy = sampling.HasField("temperature") and sampling.temperature == 0
    draws_all_the_same = sampling.xtc_probability > 0 or sampling.dynatemp_range > 0
    return (is_greedy and not draws_all_the_same) or sampling.HasField("seed")


def key_of(job: scheduler_pb2.InferenceRequest, *, model_digest: str, is_seeded: bool) -> bytes:
    """All that decides the answer but `max_tokens`, which only says how much of it is wanted. Drafts decide
    how fast it comes.

    Args:
        job: with resolved params.
        is_seeded: whether the caller chose the seed. A drawn one decides nothing.
    """
    decisive = scheduler_pb2.InferenceRequest()
    decisive.CopyFrom(job)
    for field in IRRELEVANT:
        decisive.ClearField(field)  # type: ignore[arg-type]
    _clear_reading(decisive)
    for image in decisive.images:
        image.ClearField("object")
    decisive.params.ClearField("max_tokens")
    decisive.params.ClearField("speculation")
    if not is_seeded:
        decisive.params.sampling.ClearField("seed")
    identity = (part.encode() for part in (_VERSION, cache_scope_of(job), model_digest))
    return joined([*identity, decisive.SerializeToString(deterministic=True)])


def _clear_reading(decisive: scheduler_pb2.InferenceRequest) -> None:
    """Leave of the format what decides text and usage: markers are shown, and reasoning is counted."""
    if decisive.HasField("answer_format"):
        for field in IRRELEVANT_OF_FORMAT:
            decisive.answer_format.ClearField(field)  # type: ignore[arg-type]
        if not decisive.answer_format.ByteSize():
            decisive.ClearField("answer_format")


def name_of(key: bytes, salt: bytes) -> bytes:
    """The key's name in Redis: without the deployment's secret it tells nothing, and cannot be guessed."""
    return blake2b(key, key=salt, digest_size=NAME_BYTES).digest()
