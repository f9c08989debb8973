"""The input of a response, items and parts, as messages of a conversation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import given, missing, unsupported
from inferflux.gateway.http.openai import custom_tools
from inferflux.gateway.http.openai.bodies import InputItem, InputPart, Part, ResponsesBody
from inferflux.gateway.http.openai.constraints import json_text
from inferflux.gateway.http.openai.messages import audio_of, text_of
from inferflux.gateway.images.inputs import file_of, is_image_file, is_sound_file
from inferflux.v1 import inference_pb2

from .hosted import SKIPPED_ITEMS

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
_IMAGE, _AUDIO, _FILE = "input_image", "input_audio", "input_file"
_MEDIA = (_IMAGE, _AUDIO, _FILE)
_TYPES = (*_TEXTS, *_MEDIA)
_INSTRUCTING = ("system", "developer")
_SHELL = "local_shell"
_NO_IDS = "nothing is stored: send the file, or its URL"


class Conversation:
    """Items as messages: what the assistant said and called in a row is one message."""

    def __init__(self) -> None:
        self.messages: list[inference_pb2.ChatMessage] = []
        self._media: dict[str, str] = {}
        self._calls: dict[str, str] = {}
        self._places: dict[str, str] = {}

    @property
    def places(self) -> Mapping[str, str]:
        """Where the client has messages, and what stands in them, for errors. The innermost come first."""
        return self._media | self._calls | self._places

    def add_text(self, role: str, text: str, field: str) -> None:
        """A message that is a field's text."""
        self._places[f"messages[{len(self.messages)}].content"] = field
        self._add(inference_pb2.ChatMessage(role=role, content=text), field)

    def add_item(self, item: InputItem, field: str) -> None:
        """A message, or what becomes part of one.

        Raises:
            InvalidArgument: it is of another kind, or lacks something.
        """
        match item.type:
            case None | "message":
                self._add_message(item, field)
            case "function_call":
                self._add_call(item, item.arguments or "", field)
            case "custom_tool_call":
                self._add_call(item, custom_tools.arguments_of(item.input or ""), field)
            case "local_shell_call" | "shell_call":
                named = item.model_copy(update={"name": item.name or _SHELL})
                self._add_call(named, json_text(item.action or {}, f"{field}.action"), field)
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(item, given(item.call_id, f"{field}.call_id"), field)
            case "local_shell_call_output" | "shell_call_output":
                self._add_output(item, item.call_id or item.id or "", field)
            case "reasoning":
                if thought := item.content or item.summary:
                    self._assistant(field).reasoning_content += _text(thought, f"{field}.content")
            case _ if item.type in SKIPPED_ITEMS:
                pass
            case "item_reference":
                raise unsupported(f"{field}.type", "nothing is stored: send the item itself")
            case _:
                raise unsupported(f"{field}.type", f"{item.type[:32]!r} is not supported")

    def _add_call(self, item: InputItem, arguments: str, field: str) -> None:
        calls = self._assistant(field).tool_calls
        self._calls[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"] = field
        call_id = given(item.call_id, f"{field}.call_id")
        calls.add(id=call_id, name=given(item.name, f"{field}.name"), arguments=arguments)

    def _add_output(self, item: InputItem, call_id: str, field: str) -> None:
        output = _text(item.output, f"{field}.output")
        self._add(inference_pb2.ChatMessage(role="tool", content=output, tool_call_id=call_id), field)

    def _add(self, message: inference_pb2.ChatMessage, place: str) -> None:
        self.messages.append(message)
        self._places[f"messages[{len(self.messages) - 1}]"] = place

    def _add_message(self, item: InputItem, field: str) -> None:
        role = given(item.role, f"{field}.role")
        if not isinstance(item.content, str) and any(part.type in _MEDIA for part in item.content or ()):
            self._add_parts(role, item.content or (), field)
            return
        is_answer = role == "assistant" and item.content is None
        content = "" if is_answer else _text(item.content, f"{field}.content", types=_TYPES)
        last = self.messages[-1] if self.messages else None
        if (
            role in _INSTRUCTING
            and last is not None
            and len(self.messages) == 1
            and last.role in _INSTRUCTING
        ):
            # Many templates take one such message, and only as the first.
            last.content = f"{last.content}\n\n{content}"
            return
        if role == "assistant" and last is not None and last.role == role and last.reasoning_content:
            last.content = content if not last.content else f"{last.content}\n{content}"
        else:
            self._add(inference_pb2.ChatMessage(role=role, content=content), field)

    def _add_parts(self, role: str, content: Sequence[InputPart], field: str) -> None:
        """A message that has images or sounds."""
        message = inference_pb2.ChatMessage(role=role)
        for i, part in enumerate(content):
            inner, outer = f"messages[{len(self.messages)}].parts[{i}]", f"{field}.content[{i}]"
            made, names = _part(part, f"{field}.content", i)
            message.parts.append(made)
            self._media |= {f"{inner}.{name}": f"{outer}.{said}" for name, said in names.items()}
            self._media[inner] = outer
        self._add(message, field)

    def _assistant(self, field: str) -> inference_pb2.ChatMessage:
        """The assistant's message that the conversation ends with, new if it does not."""
        if not self.messages or self.messages[-1].role != "assistant":
            self._add(inference_pb2.ChatMessage(role="assistant"), field)
        return self.messages[-1]


def conversation(body: ResponsesBody) -> Conversation:
    """Instructions and input.

    Raises:
        InvalidArgument: naming what of the input is not served.
    """
    made = Conversation()
    if body.instructions:
        made.add_text("developer", body.instructions, "instructions")
    if isinstance(body.input, str):
        made.add_text("user", body.input, "input")
    else:
        for i, item in enumerate(body.input):
            made.add_item(item, f"input[{i}]")
    return made


def _part(part: InputPart, content: str, i: int) -> tuple[inference_pb2.ContentPart, Mapping[str, str]]:
    """Part number `i` of a content: (ours, what the client calls fields that have another name inside)."""
    where = f"{content}[{i}]"
    if part.type not in _MEDIA:
        return inference_pb2.ContentPart(text=text_of([part], content, types=_TYPES, first=i)), {}
    if part.file_id is not None:
        raise unsupported(f"{where}.file_id", _NO_IDS)
    if part.type == _AUDIO:
        audio = audio_of(part.input_audio, f"{where}.input_audio")
        return inference_pb2.ContentPart(audio=audio), {"audio": "input_audio"}
    if part.type == _IMAGE:
        url = given(part.image_url, f"{where}.image_url")
        return _image(part, url), {"image.detail": "detail", "image": "image_url"}
    return _file(part, where)


def _file(part: InputPart, where: str) -> tuple[inference_pb2.ContentPart, Mapping[str, str]]:
    """A file is an image or a sound by its first bytes; one with a URL is an image."""
    if part.file_data is not None and part.file_url is not None:
        raise InvalidArgument(f"{where} has both file_data and file_url", field=where)
    if part.file_url is not None:
        return _image(part, part.file_url), {"image.detail": "detail", "image": "file_url"}
    field = f"{where}.file_data"
    data = file_of(given(part.file_data, field), field=field)
    if is_sound_file(data):
        audio = inference_pb2.AudioInput(data=data)
        return inference_pb2.ContentPart(audio=audio), {"audio": "file_data"}
    if is_image_file(data):
        return _image(part, data), {"image.detail": "detail", "image": "file_data"}
    raise unsupported(field, "only PNG, JPEG, WebP, GIF, WAV and MP3 are taken")


def _image(part: InputPart, source: str | bytes) -> inference_pb2.ContentPart:
    """An image from its URL, or from its file."""
    image = inference_pb2.ImageInput(detail=part.detail or "")
    if isinstance(source, str):
        image.url = source
    else:
        image.data = source
    return inference_pb2.ContentPart(image=image)


def _text(content: str | Sequence[Part] | None, field: str, *, types: Sequence[str] = _TEXTS) -> str:
    if content is None:
        raise missing(field)
    return text_of(content, field, types=types)
