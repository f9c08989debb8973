"""What a request must be like before anything is done for it. Pure; every error names its field.

Ranges (both ends included unless said otherwise):

| field | allowed |
|---|---|
| priority | -100 to 100 |
| resume_window_s | 0 to INFERFLUX_GATEWAY_MAX_RESUME_WINDOW_S |
| params.max_tokens | 1 to the model's context length |
| params.sampling.temperature | 0 to 100 |
| params.sampling.top_k | 0 or more |
| params.sampling.top_p | above 0, to 1 |
| params.sampling.min_p | 0 to 1 |
| params.sampling.repeat_penalty | above 0, to 10 |
| params.sampling.frequency_penalty, presence_penalty | -2 to 2 |
| params.sampling.penalty_last_n | -1 (the whole context) to the context length |
| params.sampling.logit_bias | at most 1024 ids of the vocabulary, each -100 to 100 |
| params.sampling.logprobs | 0 to 20 |
| params.stop | at most 16, each 1 to 256 bytes |
| params.stop_token_ids | at most 64 ids of the vocabulary |
| change.high_priority_threshold | -1000 to 1000 |
| change.max_timeslice_tokens | 0 to 1,000,000 |
| worker_id | 1 to 64 of A-Z a-z 0-9 _ - |
| hand_over_after_ms | 0 to 86,400,000 |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferflux.common import subjects
from inferflux.common.errors import InvalidArgument
from inferflux.common.priority import HIGHEST, LOWEST
from inferflux.v1 import generation_pb2, inference_pb2, model_pb2, scheduler_pb2

ROLES = frozenset({"system", "user", "assistant"})
MAX_MESSAGES = 10_000
MAX_MODEL_NAME_BYTES = 256
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
# Beyond every priority, so that nothing, or everything, can be urgent.
MAX_THRESHOLD = 1000
MAX_TIMESLICE_TOKENS = 1_000_000
MAX_HAND_OVER_MS = 86_400_000


def check_model_name(name: str, *, field: str = "model") -> None:
    if not name:
        raise InvalidArgument("no model is named", field=field)
    if len(name.encode()) > MAX_MODEL_NAME_BYTES:
        raise InvalidArgument(f"a model's name has at most {MAX_MODEL_NAME_BYTES} bytes", field=field)


def check_priority(priority: int) -> None:
    _check_range(priority, LOWEST, HIGHEST, "priority")


def check_resume_window(window_s: int, *, most_s: int) -> None:
    _check_range(window_s, 0, most_s, "resume_window_s")


def check_messages(messages: Sequence[inference_pb2.ChatMessage], *, max_text_bytes: int) -> None:
    """Roles are known, and the texts are not too large together."""
    if not messages:
        raise InvalidArgument("messages is empty", field="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidArgument(f"{len(messages)} messages; at most {MAX_MESSAGES} are taken", field="messages")
    total = 0
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            known = ", ".join(sorted(ROLES))
            raise InvalidArgument(
                f"unknown role {message.role[:32]!r}: use one of {known}", field=f"messages[{i}].role"
            )
        total += len(message.content.encode())
    _check_text_size(total, max_text_bytes, "messages")


def prompt_of(request: inference_pb2.GenerateRequest, *, max_text_bytes: int) -> str | Sequence[int]:
    """The prompt of a Generate request: a text, or token ids (not checked against a vocabulary yet)."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidArgument("one of text, text_bytes and token_ids is needed", field="prompt")
    if kind == "token_ids":
        if not request.token_ids.ids:
            raise InvalidArgument("token_ids is empty", field="token_ids")
        return request.token_ids.ids
    text = request.text if kind == "text" else _decode(request.text_bytes)
    if not text:
        raise InvalidArgument(f"{kind} is empty", field=kind)
    _check_text_size(len(text.encode()), max_text_bytes, kind)
    return text


def check_token_ids(ids: Sequence[int], card: model_pb2.ModelCard, *, field: str) -> None:
    """All ids are of the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < card.vocabulary_size):
        i, bad = next((i, t) for i, t in enumerate(ids) if not 0 <= t < card.vocabulary_size)
        message = f"token id {bad} is not in [0, {card.vocabulary_size})"
        raise InvalidArgument(message, field=f"{field}[{i}]")


def check_prompt_length(n_tokens: int, card: model_pb2.ModelCard, *, field: str) -> None:
    """The prompt is there, and leaves room for one token."""
    if n_tokens == 0:
        raise InvalidArgument("the prompt has no tokens", field=field)
    if n_tokens + 1 > card.context_length:
        raise InvalidArgument(
            f"the prompt has {n_tokens} tokens; the context of {card.context_length} "
            f"takes prompts of at most {card.context_length - 1}",
            field=field,
            reason="PROMPT_TOO_LONG",
        )


def check_params(params: generation_pb2.GenerationParams, card: model_pb2.ModelCard) -> None:
    """Everything about a generation that can be checked without its prompt."""
    if params.HasField("max_tokens"):
        _check_range(params.max_tokens, 1, card.context_length, "params.max_tokens")
    _check_stop(params.stop)
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        message = f"{len(params.stop_token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS} are taken"
        raise InvalidArgument(message, field="params.stop_token_ids")
    check_token_ids(params.stop_token_ids, card, field="params.stop_token_ids")
    _check_sampling(params.sampling, card)


def check_fairness(change: scheduler_pb2.SetFairness) -> None:
    """Something changes, to values that make sense."""
    if change == scheduler_pb2.SetFairness():
        raise InvalidArgument("nothing is to be changed", field="change")
    threshold, timeslice = change.high_priority_threshold, change.max_timeslice_tokens
    _check_range(threshold, -MAX_THRESHOLD, MAX_THRESHOLD, "change.high_priority_threshold")
    _check_range(timeslice, 0, MAX_TIMESLICE_TOKENS, "change.max_timeslice_tokens")


def check_worker_id(worker_id: str) -> None:
    if not worker_id:
        raise InvalidArgument("no worker is named", field="worker_id")
    if not subjects.is_safe_token(worker_id):
        raise InvalidArgument("a worker's id is 1-64 of A-Z a-z 0-9 _ -", field="worker_id")


def check_hand_over(after_ms: int | None) -> None:
    if after_ms is not None:
        _check_range(after_ms, 0, MAX_HAND_OVER_MS, "hand_over_after_ms")


def _check_stop(stop: Sequence[str]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        message = f"{len(stop)} stop strings; at most {MAX_STOP_STRINGS} are taken"
        raise InvalidArgument(message, field="params.stop")
    for i, text in enumerate(stop):
        size = len(text.encode())
        if not 1 <= size <= MAX_STOP_BYTES:
            message = f"a stop string has 1 to {MAX_STOP_BYTES} bytes, not {size}"
            raise InvalidArgument(message, field=f"params.stop[{i}]")


def _check_sampling(sampling: generation_pb2.SamplingParams, card: model_pb2.ModelCard) -> None:
    given = {field.name for field, _ in sampling.ListFields()}
    for name, low, high in (
        ("temperature", 0.0, 100.0),
        ("min_p", 0.0, 1.0),
        ("frequency_penalty", -2.0, 2.0),
        ("presence_penalty", -2.0, 2.0),
        ("top_k", 0, 2**31 - 1),
        ("penalty_last_n", -1, card.context_length),
        ("logprobs", 0, MAX_LOGPROBS),
    ):
        if name in given:
            _check_range(getattr(sampling, name), low, high, f"params.sampling.{name}")
    for name, high in (("top_p", 1.0), ("repeat_penalty", 10.0)):
        value = getattr(sampling, name)
        if name in given and not 0.0 < value <= high:
            message = f"{name} must be above 0 and at most {high:g}, not {value:g}"
            raise InvalidArgument(message, field=f"params.sampling.{name}")
    _check_logit_bias(sampling, card)


def _check_logit_bias(sampling: generation_pb2.SamplingParams, card: model_pb2.ModelCard) -> None:
    field = "params.sampling.logit_bias"
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        message = f"{len(sampling.logit_bias)} biases; at most {MAX_LOGIT_BIAS} are taken"
        raise InvalidArgument(message, field=field)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < card.vocabulary_size:
            message = f"token id {token} is not in [0, {card.vocabulary_size})"
            raise InvalidArgument(message, field=f"{field}[{token}]")
        _check_range(bias, -100.0, 100.0, f"{field}[{token}]")


def _check_range(value: float, low: float, high: float, field: str) -> None:
    # Written so that NaN fails.
    if not low <= value <= high or math.isinf(value):
        raise InvalidArgument(
            f"{field.rpartition('.')[2]} must be from {low:g} to {high:g}, not {value:g}"
            if isinstance(low, float)
            else f"{field.rpartition('.')[2]} must be from {low} to {high}, not {value}",
            field=field,
        )


def _check_text_size(size: int, limit: int, field: str) -> None:
    if size > limit:
        message = f"{size} bytes of text; at most {limit} are taken"
        raise InvalidArgument(message, field=field, reason="TEXT_TOO_LARGE")


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"text_bytes is not UTF-8: {error.reason} at byte {error.start}"
        raise InvalidArgument(message, field="text_bytes", reason="INVALID_UTF8") from None
