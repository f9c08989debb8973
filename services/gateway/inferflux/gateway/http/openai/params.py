"""OpenAI's sampling fields, tiers and limits to ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferflux.api.speculation import SOURCES, source_of
from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import unsupported
from inferflux.v1 import generation_pb2

from .bodies import OwnFields, SamplingBody
from .constraints import to_constraint

# Fields that have the same name and meaning on both sides.
_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_n_sigma",
)

# Above 0 is more urgent: a tier is a priority by name.
TIERS: Mapping[str, int] = {"auto": 0, "default": 0, "scale": 0, "flex": -5, "priority": 5}
# More than any bias may have, and what a float32 field holds.
_MOST_BIAS = 1e30
# What llama.cpp's server takes `false` for.
_NEVER = -100.0
# Values that turn a sampler off, and how they are said here.
_OFF: Mapping[str, tuple[float, float]] = {"top_k": (-1, 0), "top_p": (0, 1)}
_WHOLE_CONTEXT = -1
_RANDOM = -1
_NO_LIMIT = -1
_DEFAULT_TIER = "default"


def to_params(
    body: SamplingBody, *, max_tokens: int | None, logprobs: int | None
) -> generation_pb2.GenerationParams:
    """The parameters of a generation; ranges are the pipeline's to check.

    Args:
        logprobs: alternatives to report per token; None reports no log-probabilities.

    Raises:
        InvalidArgument: a key of logit_bias is no token id, or its value no number; or drafts have no such
            source.
    """
    sampling = generation_pb2.SamplingParams(
        **{name: _said(name, value) for name in _SAMPLING if (value := getattr(body, name)) is not None}
    )
    if body.repetition_penalty is not None:
        sampling.repeat_penalty, sampling.penalty_last_n = body.repetition_penalty, _WHOLE_CONTEXT
    if body.seed is not None and body.seed != _RANDOM:
        sampling.seed = body.seed % 2**64
    if logprobs is not None:
        sampling.logprobs = logprobs
    if body.dry_sequence_breakers is not None:
        breakers = generation_pb2.SequenceBreakers(texts=body.dry_sequence_breakers)
        sampling.dry_sequence_breakers.CopyFrom(breakers)
    texts: list[generation_pb2.TextBias] = []
    for token, bias in _biases(body.logit_bias):
        if isinstance(token, str):
            texts.append(generation_pb2.TextBias(text=token, bias=bias))
        else:
            sampling.logit_bias[token] = bias
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return generation_pb2.GenerationParams(
        sampling=sampling,
        constraint=to_constraint(body),
        max_tokens=None if max_tokens == _NO_LIMIT else max_tokens,
        stop=[text for text in stop if text],
        min_tokens=body.min_tokens or 0,
        bad_words=[word for word in body.bad_words or [] if word],
        text_bias=texts,
        stop_token_ids=body.stop_token_ids or [],
        ignore_eos=bool(body.ignore_eos),
        speculation=_speculation(body.speculation),
        max_reasoning_tokens=_max_reasoning_tokens(body),
        deterministic=body.deterministic,
    )


def own_fields(*bodies: OwnFields | None) -> dict[str, Any]:
    """The fields of `OwnFields` that are set. Of several bodies the first that has one counts."""
    given = {
        name: next((value for body in bodies if (value := getattr(body, name, None)) is not None), None)
        for name in OwnFields.model_fields
    }
    return {name: value for name, value in given.items() if value is not None}


def priority_of(body: SamplingBody) -> int:
    """The priority that is asked for: by number, else by the tier's name.

    Raises:
        InvalidArgument: there is no such tier.
    """
    tier = body.service_tier
    if tier is not None and tier not in TIERS:
        raise unsupported("service_tier", f"{tier[:32]!r} is none of {', '.join(sorted(TIERS))}")
    return body.priority if body.priority is not None else TIERS[tier or _DEFAULT_TIER]


def tier_of(body: SamplingBody) -> str:
    """The tier as answers say it."""
    return _DEFAULT_TIER if body.service_tier in (None, "auto") else str(body.service_tier)


def _max_reasoning_tokens(body: SamplingBody) -> int | None:
    """The first of its names that is set; None, or -1: no limit."""
    names = ("max_reasoning_tokens", "thinking_budget_tokens", "thinking_token_budget")
    name, most = next(((n, v) for n in names if (v := getattr(body, n)) is not None), ("", -1))
    if most < -1:
        raise InvalidArgument(f"{name} is 0 or more; -1 is no limit", field=name)
    return None if most == -1 else most


def _speculation(name: str | None) -> generation_pb2.Speculation.ValueType:
    if name is not None and name not in SOURCES:
        raise unsupported("speculation", f"{name[:32]!r} is none of {', '.join(SOURCES)}")
    return source_of(name)


def _said(name: str, value: Any) -> Any:
    """A value as it is said here."""
    off, ours = _OFF.get(name, (None, None))
    return ours if value == off else value


def _biases(given: dict[str, Any] | list[Any] | None) -> Iterator[tuple[int | str, float]]:
    """(a token id or a text, its bias) of each entry, an object's or a list's pairs.

    Raises:
        InvalidArgument: a key is neither, or a bias no number.
    """
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            raise InvalidArgument("logit_bias: a list has pairs of token and bias", field="logit_bias")
        key, bias = pair
        bias = _NEVER if bias is False else bias
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= _MOST_BIAS:
            name = str(key)[:32]
            raise InvalidArgument(f"logit_bias[{name}] is no number within its range", field="logit_bias")
        yield _token_of(key), bias


def _token_of(key: Any) -> int | str:
    if isinstance(key, str) and not (key.isascii() and key.isdigit()):
        if not key:
            raise InvalidArgument("logit_bias: a text is empty", field="logit_bias")
        return key
    if (
        isinstance(key, str | int)
        and not isinstance(key, bool)
        and 0 <= int(key[:10] if isinstance(key, str) else key) < 10**9
    ):
        return int(key)
    raise InvalidArgument(f"logit_bias: {str(key)[:32]!r} is not a token id", field="logit_bias")
