"""What a request must be like before anything is done for it. Pure; every error names its field.

A resume window is from 0 to INFERFLUX_GATEWAY_MAX_RESUME_WINDOW_S. The ranges of priority and params are in
`common/contract/requests/generation_limits.py`, what an administrator may ask for in
`common/contract/models/admin_limits.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic_core import from_json

from inferflux.common.contract.checks import check_range
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import generation_limits
from inferflux.v1 import inference_pb2, model_pb2, tokenizer_pb2

from .tools import check_calls

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
MAX_MESSAGES = 10_000
MAX_SWITCHES_BYTES = 16 << 10
# What a template gets in other ways.
_NO_SWITCHES = frozenset({"messages", "tools", "chat_template", "tokenize", "self"})


def check_priority(priority: int, *, announced: int) -> None:
    """It is one, and the call did not go ahead of others by announcing a more urgent one."""
    generation_limits.check_priority(priority)
    if announced > max(priority, 0):  # 0 is also what a call says that announces none
        message = f"the call's metadata says priority {announced}, and its request {priority}"
        raise InvalidArgument(message, field="priority", reason="PRIORITIES_DIFFER")


def check_resume_window(window_s: int, *, most_s: int) -> None:
    check_range(window_s, 0, most_s, "resume_window_s")


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
        check_calls(message, f"messages[{i}]")
        total += sum(len(text.encode()) for text in texts_of(message))
    check_text_size(total, max_text_bytes, "messages")


def prompt_form(chat: inference_pb2.ChatRequest | inference_pb2.Conversation) -> tokenizer_pb2.RenderChat:
    """How a conversation is to be rendered, without it.

    Raises:
        InvalidArgument: the switches are no JSON object or name what is not theirs, the effort is not known,
            or the last message cannot be continued.
    """
    _check_switches(chat.chat_template_kwargs)
    if chat.reasoning_effort and chat.reasoning_effort not in generation_limits.REASONING_EFFORTS:
        known = ", ".join(generation_limits.REASONING_EFFORTS)
        message = f"reasoning_effort: unknown value {chat.reasoning_effort[:32]!r}: use one of {known}"
        raise InvalidArgument(message, field="reasoning_effort", reason="UNSUPPORTED_VALUE")
    if chat.continue_final_message:
        last = chat.messages[-1]
        if last.role != "assistant" or last.tool_calls or not any(texts_of(last)):
            message = "continue_final_message: the last message is a text or a thought of the assistant"
            raise InvalidArgument(message, field="continue_final_message")
    return tokenizer_pb2.RenderChat(
        has_optional_switches=chat.has_optional_switches,
        chat_template_kwargs=chat.chat_template_kwargs,
        reasoning_effort=chat.reasoning_effort,
        continue_final_message=chat.continue_final_message,
        skip_generation_prompt=chat.skip_generation_prompt,
    )


def _check_switches(text: str) -> None:
    field = "chat_template_kwargs"
    try:
        given = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidArgument(f"{field}: no JSON object", field=field)
    check_text_size(len(text.encode()), MAX_SWITCHES_BYTES, field)
    for name in given:
        if not name.isidentifier() or name in _NO_SWITCHES:
            raise InvalidArgument(f"{field}: {name[:64]!r} is no switch", field=field)


def texts_of(message: inference_pb2.ChatMessage) -> Iterator[str]:
    """Every text of a message, empty ones too."""
    yield from (message.content, message.name, message.tool_call_id, message.reasoning_content)
    yield from (part.text for part in message.parts if part.HasField("text"))
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)


def check_text(text: str, *, max_text_bytes: int, field: str) -> None:
    """Raises InvalidArgument if the text is empty or too large."""
    if not text:
        raise InvalidArgument(f"{field} is empty", field=field)
    check_text_size(len(text.encode()), max_text_bytes, field)


def prompt_of(request: inference_pb2.GenerateRequest, *, max_text_bytes: int) -> str | Sequence[int]:
    """The prompt of a Generate request: a text, or token ids (not checked against a vocabulary yet)."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidArgument("one of text, text_bytes, token_ids and parts is needed", field="prompt")
    if kind == "token_ids":
        if not request.token_ids.ids:
            raise InvalidArgument("token_ids is empty", field="token_ids")
        return request.token_ids.ids
    if kind == "parts":
        if not request.parts.parts:
            raise InvalidArgument("parts is empty", field=kind)
        text = "".join(part.text for part in request.parts.parts)
        if request.HasField("suffix"):
            raise InvalidArgument("suffix: the prompt has to be a text", field="suffix")
        check_text_size(len(text.encode()), max_text_bytes, kind)
        return text
    text = request.text if kind == "text" else _decode(request.text_bytes)
    check_text(text, max_text_bytes=max_text_bytes, field=kind)
    return text


def check_prompt_length(n_tokens: int, card: model_pb2.ModelCard, *, field: str) -> None:
    """Raises InvalidArgument if the prompt is empty, or leaves no room for one token."""
    if n_tokens == 0:
        raise InvalidArgument("the prompt has no tokens", field=field)
    if n_tokens + 1 > card.context_length:
        raise InvalidArgument(
            f"this model's maximum context length is {card.context_length} tokens; the prompt has "
            f"{n_tokens}, and the answer needs one",
            field=field,
            reason="PROMPT_TOO_LONG",
        )


def check_text_size(size: int, limit: int, field: str) -> None:
    """Raises InvalidArgument if `size` bytes are more than `limit`."""
    if size > limit:
        message = f"{size} bytes of text; at most {limit} are taken"
        raise InvalidArgument(message, field=field, reason="TEXT_TOO_LARGE")


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"text_bytes is not UTF-8: {error.reason} at byte {error.start}"
        raise InvalidArgument(message, field="text_bytes", reason="INVALID_UTF8") from None
