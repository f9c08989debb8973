"""Usage that a finished request adds to its tenant's counters. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.subjects import is_safe_token
from inferflux.v1 import policy_pb2

from .keys import parse_holder_id, parse_tenant

MAX_MODEL_LENGTH = 256

_OUTCOME = re.compile(r"[a-z0-9_]{1,64}")


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """One request that ended, and what it used, in tokens."""

    request_id: str
    attempt_id: str
    tenant: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    cached_completion_tokens: int
    key_id: str = ""
    model: str = ""

    @classmethod
    def parse(cls, request: policy_pb2.SettleRequest) -> SettledRequest:
        """Check every field; raises InvalidArgument naming the first that is wrong."""
        if _OUTCOME.fullmatch(request.outcome) is None:
            raise InvalidArgument("an outcome is 1-64 of a-z 0-9 _", field="outcome")
        usage = request.usage
        if usage.cached_prompt_tokens > usage.prompt_tokens:
            message = f"{usage.cached_prompt_tokens} cached of {usage.prompt_tokens} prompt tokens"
            raise InvalidArgument(message, field="usage.cached_prompt_tokens")
        if usage.cached_completion_tokens > usage.completion_tokens:
            message = (
                f"{usage.cached_completion_tokens} cached of {usage.completion_tokens} completion tokens"
            )
            raise InvalidArgument(message, field="usage.cached_completion_tokens")
        return cls(
            request_id=parse_request_id(request.request_id),
            attempt_id=parse_attempt_id(request.attempt_id),
            tenant=parse_tenant(request.tenant),
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_completion_tokens=usage.cached_completion_tokens,
            key_id=parse_holder_id(request.key_id),
            model=parse_model(request.model),
        )

    @property
    def tokens(self) -> int:
        """The tokens that it is charged."""
        return self.prompt_tokens + self.completion_tokens

    def counters(self) -> dict[str, int]:
        """Amounts for the tenant's counters, by name."""
        return {
            "requests": 1,
            "prompt_tokens": self.prompt_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_completion_tokens": self.cached_completion_tokens,
        }


def parse_request_id(text: str, *, field: str = "request_id") -> str:
    if not is_safe_token(text):
        raise InvalidArgument("a request id is 1-64 of A-Z a-z 0-9 _ -", field=field)
    return text


def parse_attempt_id(text: str, *, field: str = "attempt_id") -> str:
    """An attempt's id, or nothing: gateways of before there were attempts distinguish jobs by request id."""
    if text and not is_safe_token(text):
        raise InvalidArgument("an attempt id is 1-64 of A-Z a-z 0-9 _ -", field=field)
    return text


def parse_model(text: str, *, field: str = "model") -> str:
    """A model's name, or nothing."""
    if len(text) > MAX_MODEL_LENGTH:
        raise InvalidArgument(f"a model's name has at most {MAX_MODEL_LENGTH} characters", field=field)
    return text
