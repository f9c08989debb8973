"""Jobs that embed: how many texts one of them holds, and what it may say (pure).

A call with many texts becomes several jobs. They are of a size that a worker computes in a moment, so that an
urgent job soon finds a place, and the vectors of one fit a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import scheduler_pb2

MAX_INPUTS = 2048
"""Texts of one call, as in OpenAI's API."""
MAX_JOB_TEXTS = 16
MAX_JOB_TOKENS = 2048
"""A longer text is a job by itself."""


def split(lengths: Sequence[int]) -> Iterator[range]:
    """Texts that make up a job each, in their order.

    Args:
        lengths: tokens of each text.
    """
    start = tokens = 0
    for i, length in enumerate(lengths):
        is_full = i - start == MAX_JOB_TEXTS or tokens + length > MAX_JOB_TOKENS
        if is_full and i > start:
            yield range(start, i)
            start, tokens = i, 0
        tokens += length
    if start < len(lengths):
        yield range(start, len(lengths))


def check_task(request: scheduler_pb2.InferenceRequest) -> None:
    """The texts of a job are as it says.

    Raises:
        InvalidArgument: there are none or too many, one is empty, or their tokens are not the prompt's.
    """
    lengths = request.embedding.text_tokens
    field = "embedding.text_tokens"
    if not 1 <= len(lengths) <= MAX_JOB_TEXTS:
        raise InvalidArgument(f"{len(lengths)} texts; a job has 1 to {MAX_JOB_TEXTS}", field=field)
    if min(lengths) < 1:
        raise InvalidArgument("a text has no tokens", field=field)
    if sum(lengths) != len(request.prompt_token_ids):
        message = f"the texts have {sum(lengths)} tokens, the prompt {len(request.prompt_token_ids)}"
        raise InvalidArgument(message, field=field)
    if request.generated_token_ids:
        raise InvalidArgument("a job that embeds has generated nothing", field="generated_token_ids")
