"""What OpenAI's sampling fields, tiers and limits mean for us."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.api.speculation import SOURCES, source_of
from inferflux.common.errors import InvalidArgument
from inferflux.gateway.http.errors import unsupported
from inferflux.v1 import generation_pb2

from .bodies import SamplingBody
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
TIERS: Mapping[str, int] = {"auto": 0, "default": 0, "flex": -5, "priority": 5}
# More than any bias may have, and what a float32 field holds.
_MOST_BIAS = 1e30
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
        **{name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    )
    if body.seed is not None:
        sampling.seed = body.seed % 2**64
    if logprobs is not None:
        sampling.logprobs = logprobs
    if body.dry_sequence_breakers is not None:
        breakers = generation_pb2.SequenceBreakers(texts=body.dry_sequence_breakers)
        sampling.dry_sequence_breakers.CopyFrom(breakers)
    for key, bias in (body.logit_bias or {}).items():
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= _MOST_BIAS:
            raise InvalidArgument(f"logit_bias[{key[:32]}] is no number within its range", field="logit_bias")
        sampling.logit_bias[_token_id(key)] = bias
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return generation_pb2.GenerationParams(
        sampling=sampling,
        constraint=to_constraint(body),
        max_tokens=max_tokens,
        stop=stop,
        stop_token_ids=body.stop_token_ids or [],
        ignore_eos=bool(body.ignore_eos),
        speculation=_speculation(body.speculation),
        max_reasoning_tokens=_max_reasoning_tokens(body),
    )


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


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        raise InvalidArgument(f"logit_bias: {key[:32]!r} is not a token id", field="logit_bias")
    return int(key)
