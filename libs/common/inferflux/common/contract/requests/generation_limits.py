"""The ranges of what a caller may ask of a generation: one definition for gateway, scheduler and worker.

Both ends are included:

| field | allowed |
|---|---|
| priority | -100 to 100 |
| params.max_tokens | 1 to the context length; gateways cut it to that |
| params.max_reasoning_tokens | 0 or more |
| params.sampling.temperature | 0 to 100 |
| params.sampling.top_k | 0 or more |
| params.sampling.top_p | above 0, to 1 |
| params.sampling.min_p | 0 to 1 |
| params.sampling.repeat_penalty | 0.01 to 10 |
| params.sampling.frequency_penalty, presence_penalty | -2 to 2 |
| params.sampling.penalty_last_n | -1 (the whole context) to the context length |
| params.sampling.logit_bias | at most 1024 ids of the vocabulary, each -100 to 100 |
| params.sampling.logprobs | 0 to 20 |
| params.sampling.typical_p, xtc_probability, xtc_threshold | 0 to 1 |
| params.sampling.dry_multiplier | 0 to 100 |
| params.sampling.dry_base | 1 to 100 |
| params.sampling.dry_allowed_length | 0 or more |
| params.sampling.dry_penalty_last_n | -1 (the whole context) to the context length |
| params.sampling.dry_sequence_breakers | at most 16, each 1 to 40 bytes |
| params.sampling.dynatemp_range, dynatemp_exponent | 0 to 100 |
| params.sampling.top_n_sigma | -1 to 100; -1 is as good as 0 |
| params.stop | at most 16, each 1 to 256 bytes |
| params.stop_token_ids | at most 64 ids of the vocabulary |
| params.constraint | see `constraints.limits` |
| params.speculation | a known value |
| params.prompt_logprobs | 0 to 20 |
| params.min_tokens | 0 or more; not together with a constraint |
| params.bad_words | at most 64, each 1 to 256 bytes |
| params.text_bias | at most 1024, each text 1 to 256 bytes, each bias -100 to 100 |
| params.banned | at most 128, each 1 to 256 ids of the vocabulary |

A penalty below 0.01 could divide a logit beyond what a float32 holds. Pure; every error names its field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from inferflux.api.speculation import check_speculation
from inferflux.common.contract.checks import MAX_TOKENS, check_range
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import generation_pb2

from .constraint_limits import check_constraint
from .priority import HIGHEST, LOWEST

# How long a model shall think, in words of OpenAI's; `max` is others'.
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_BREAKERS = 16
MAX_BREAKER_BYTES = 40
MAX_LOGPROBS = 20
MAX_BAD_WORDS = 64
MAX_WORD_BYTES = 256
# A word has two spellings, and a token stands for a byte at least.
MAX_BANNED = 2 * MAX_BAD_WORDS
# As a float32 field holds 0.01, which is a little less.
MIN_REPEAT_PENALTY: float = struct.unpack("f", struct.pack("f", 0.01))[0]

_SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (MIN_REPEAT_PENALTY, 10.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "top_k": (0, MAX_TOKENS),
    "logprobs": (0, MAX_LOGPROBS),
    "typical_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (0, MAX_TOKENS),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "top_n_sigma": (-1.0, 100.0),
}


def check_priority(priority: int) -> None:
    """Raises InvalidArgument outside of the range."""
    check_range(priority, LOWEST, HIGHEST, "priority")


def check_token_ids(ids: Sequence[int], vocabulary_size: int, *, field: str) -> None:
    """All ids are in [0, vocabulary_size).

    Raises:
        InvalidArgument: naming the first that is not.
    """
    ids = ids[:]  # protobuf hands out its numbers one by one; a list is looked through several times faster
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary_size):
        i, bad = next((i, t) for i, t in enumerate(ids) if not 0 <= t < vocabulary_size)
        name = field.removesuffix(".ids").rpartition(".")[2]
        message = f"{name}[{i}]: token id {bad} is not in [0, {vocabulary_size})"
        raise InvalidArgument(message, field=f"{field}[{i}]")


def check_params(
    params: generation_pb2.GenerationParams,
    *,
    context_length: int = MAX_TOKENS,
    vocabulary_size: int = MAX_TOKENS + 1,
) -> None:
    """Check what can be checked of a generation without its prompt. Fields that are not set pass.

    Args:
        context_length, vocabulary_size: of the model; without them only what no model allows is refused.

    Raises:
        InvalidArgument: naming the field.
    """
    if params.HasField("max_tokens"):
        check_range(params.max_tokens, 1, context_length, "params.max_tokens")
    if params.HasField("max_reasoning_tokens"):
        check_range(params.max_reasoning_tokens, 0, MAX_TOKENS, "params.max_reasoning_tokens")
    _check_texts(params.stop, MAX_STOP_STRINGS, MAX_STOP_BYTES, "stop string", "params.stop")
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        message = f"{len(params.stop_token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS} are taken"
        raise InvalidArgument(message, field="params.stop_token_ids")
    check_token_ids(params.stop_token_ids, vocabulary_size, field="params.stop_token_ids")
    _check_sampling(params.sampling, context_length)
    breakers = params.sampling.dry_sequence_breakers.texts
    field = "params.sampling.dry_sequence_breakers"
    _check_texts(breakers, MAX_BREAKERS, MAX_BREAKER_BYTES, "sequence breaker", field)
    _check_logit_bias(params.sampling, vocabulary_size)
    check_range(params.prompt_logprobs, 0, MAX_LOGPROBS, "params.prompt_logprobs")
    check_range(params.min_tokens, 0, MAX_TOKENS, "params.min_tokens")
    _check_words(params, vocabulary_size)
    check_constraint(params)
    check_speculation(params.speculation)


def _check_texts(texts: Sequence[str], most: int, most_bytes: int, what: str, field: str) -> None:
    if len(texts) > most:
        raise InvalidArgument(f"{len(texts)} {what}s; at most {most} are taken", field=field)
    for i, text in enumerate(texts):
        size = len(text.encode())
        if not 1 <= size <= most_bytes:
            message = f"a {what} has 1 to {most_bytes} bytes, not {size}"
            raise InvalidArgument(message, field=f"{field}[{i}]")


def _check_sampling(sampling: generation_pb2.SamplingParams, context_length: int) -> None:
    for field, value in sampling.ListFields():
        allowed = _SAMPLING_RANGES.get(field.name)
        if allowed is not None and not allowed[0] <= value <= allowed[1]:
            check_range(value, *allowed, f"params.sampling.{field.name}")
    for name in ("penalty_last_n", "dry_penalty_last_n"):
        check_range(getattr(sampling, name), -1, context_length, f"params.sampling.{name}")
    if sampling.HasField("top_p") and not 0.0 < sampling.top_p <= 1.0:
        message = f"top_p must be above 0 and at most 1, not {sampling.top_p:g}"
        raise InvalidArgument(message, field="params.sampling.top_p")


def _check_words(params: generation_pb2.GenerationParams, vocabulary_size: int) -> None:
    _check_texts(params.bad_words, MAX_BAD_WORDS, MAX_WORD_BYTES, "bad word", "params.bad_words")
    texts = [each.text for each in params.text_bias]
    _check_texts(texts, MAX_LOGIT_BIAS, MAX_WORD_BYTES, "biased text", "params.text_bias")
    for i, each in enumerate(params.text_bias):
        check_range(each.bias, -100.0, 100.0, f"params.text_bias[{i}].bias")
    if len(params.banned) > MAX_BANNED:
        message = f"{len(params.banned)} banned runs; at most {MAX_BANNED} are taken"
        raise InvalidArgument(message, field="params.banned")
    for i, run in enumerate(params.banned):
        if not 1 <= len(run.ids) <= MAX_WORD_BYTES:
            message = f"a banned run has 1 to {MAX_WORD_BYTES} tokens"
            raise InvalidArgument(message, field=f"params.banned[{i}]")
        check_token_ids(run.ids, vocabulary_size, field=f"params.banned[{i}].ids")


def _check_logit_bias(sampling: generation_pb2.SamplingParams, vocabulary_size: int) -> None:
    field = "params.sampling.logit_bias"
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        message = f"{len(sampling.logit_bias)} biases; at most {MAX_LOGIT_BIAS} are taken"
        raise InvalidArgument(message, field=field)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary_size:
            message = f"logit_bias: token id {token} is not in [0, {vocabulary_size})"
            raise InvalidArgument(message, field=f"{field}[{token}]")
        check_range(bias, -100.0, 100.0, f"{field}[{token}]")
