"""Messages of a conversation, as OpenAI's API has them, to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.gateway.http.errors.errors import missing, unsupported
from inferflux.gateway.images.inputs import from_base64
from inferflux.v1 import inference_pb2

from .bodies import ChatPart, InputAudio, Message, Part
from .tools import arguments_of, to_calls

_IMAGE, _AUDIO = "image_url", "input_audio"
# The latter three are of answers that are sent back.
_TYPES = ("text", _IMAGE, _AUDIO, "refusal", "input_text", "output_text")


def to_message(message: Message, index: int) -> inference_pb2.ChatMessage:
    """Message number `index` of a conversation.

    Raises:
        InvalidArgument: it has neither content nor calls, or a part that is no text.
    """
    field = f"messages[{index}]"
    is_function = message.role == "function"
    if message.content is None and message.role not in ("assistant", "tool", "function"):
        raise missing(f"{field}.content")
    content: str | Sequence[ChatPart] = message.content or message.refusal or ""
    parts: list[inference_pb2.ContentPart] = []
    has_parts = not isinstance(content, str) and (
        len(content) > 1 or any(part.type in (_IMAGE, _AUDIO) for part in content)
    )
    if has_parts and not isinstance(content, str):
        parts = _parts(content, f"{field}.content")
        content = ""
    calls = to_calls(message.tool_calls, f"{field}.tool_calls")
    if message.function_call is not None and not calls:
        called = message.function_call
        calls = [
            inference_pb2.ToolCall(
                id=_legacy_id(called.name), name=called.name, arguments=arguments_of(called.arguments)
            )
        ]
    return inference_pb2.ChatMessage(
        role="tool" if is_function else message.role,
        content=text_of(content, f"{field}.content", types=_TYPES),
        parts=parts,
        name=message.name or "",
        tool_call_id=message.tool_call_id or (_legacy_id(message.name or "") if is_function else ""),
        tool_calls=calls,
        reasoning_content=message.reasoning_content or message.reasoning or "",
    )


def _legacy_id(name: str) -> str:
    """Make the id of a call from before calls had ids: its result has the function's name alone."""
    return f"call_{name}"


def _parts(content: Sequence[ChatPart], field: str) -> list[inference_pb2.ContentPart]:
    """A content that has images or sounds.

    Raises:
        InvalidArgument: a part is of another kind, or lacks what it is.
    """
    parts: list[inference_pb2.ContentPart] = []
    for i, part in enumerate(content):
        where = f"{field}[{i}]"
        if part.type == _AUDIO:
            parts.append(inference_pb2.ContentPart(audio=audio_of(part.input_audio, f"{where}.input_audio")))
            continue
        if part.type != _IMAGE:
            parts.append(inference_pb2.ContentPart(text=text_of([part], field, types=_TYPES, first=i)))
            continue
        if part.image_url is None:
            raise missing(f"{where}.image_url")
        image = inference_pb2.ImageInput(url=part.image_url.url, detail=part.image_url.detail or "")
        parts.append(inference_pb2.ContentPart(image=image))
    return parts


def audio_of(given: InputAudio | None, field: str) -> inference_pb2.AudioInput:
    """A sound of a part.

    Raises:
        InvalidArgument: it is not there, or not base64.
    """
    if given is None:
        raise missing(field)
    data = from_base64(given.data, field=f"{field}.data", reason="BAD_AUDIO")
    return inference_pb2.AudioInput(data=data, format=given.format)


def field_names(messages: Sequence[Message]) -> Mapping[str, str]:
    """Map the fields of calls to the clients' names."""
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        if message.function_call is not None:
            call = f"messages[{i}].function_call"
            names |= {
                f"messages[{i}].tool_calls[0].{name}": f"{call}.{name}" for name in ("name", "arguments")
            }
        for j in range(len(message.tool_calls or ())):
            call = f"messages[{i}].tool_calls[{j}]"
            names |= {f"{call}.{name}": f"{call}.function.{name}" for name in ("name", "arguments")}
        n_parts = 0 if isinstance(messages[i].content, str) else len(messages[i].content or ())
        for j in range(n_parts):
            part, given = f"messages[{i}].parts[{j}]", f"messages[{i}].content[{j}]"
            names |= {
                f"{part}.image.detail": f"{given}.image_url.detail",
                f"{part}.image": f"{given}.image_url",
                f"{part}.audio": f"{given}.input_audio",
            }
    return names


def text_of(content: str | Sequence[Part], field: str, *, types: Sequence[str], first: int = 0) -> str:
    """The text of a content: several parts are lines.

    Args:
        types: those that parts of a text may have.
        first: number of the first part.

    Raises:
        InvalidArgument: a part is no text.
    """
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for i, part in enumerate(content, first):
        where = f"{field}[{i}]"
        if part.type not in types:
            known = ", ".join(map(repr, types))
            raise unsupported(f"{where}.type", f"{part.type[:32]!r} is not supported, only {known}")
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise missing(f"{where}.{part.type if part.type == 'refusal' else 'text'}")
        texts.append(text)
    return "\n".join(texts)
