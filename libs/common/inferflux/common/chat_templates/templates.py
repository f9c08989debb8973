"""Chat templates: Jinja as models carry it, in a sandbox that cannot reach or change anything.

The sandbox does not limit time or memory: its caller does (see `tokenizer_process`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_BYTES = 256 << 10


class TemplateError(Exception):
    """The template itself is at fault: it does not parse, breaks down, or gives too much text."""


class TemplateRefusedError(Exception):
    """The template called `raise_exception`: these messages are not for this model."""


class _GenerationTag(Extension):
    """Skips `{% generation %}`, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One model's template, compiled.

    Whitespace handling, extensions and the functions a template may call are those of Hugging Face
    Transformers, for which models' templates are written.

    Args:
        source: the text of the template.
        tokens: `bos_token` and the like, by name.
        max_rendered_bytes: a longer result is an error.

    Raises:
        TemplateError: larger than 256 KiB, or not a template.
    """

    def __init__(self, source: str, *, tokens: dict[str, str], max_rendered_bytes: int) -> None:
        if len(source.encode()) > MAX_TEMPLATE_BYTES:
            raise TemplateError(f"the chat template is larger than {MAX_TEMPLATE_BYTES} bytes")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise TemplateError(f"the chat template does not parse: {_first_line(error)}") from None
        self.source = source
        self._tokens = tokens
        self._max_rendered_bytes = max_rendered_bytes

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt for a conversation, ready for the assistant's answer.

        Args:
            messages, tools: as Hugging Face's templates expect them, nearly OpenAI's; arguments of calls are
                objects.

        Raises:
            TemplateRefusedError: with the template's own words.
            TemplateError: the template broke down or gave too much text.
        """
        pieces: list[str] = []
        room = self._max_rendered_bytes
        try:
            for piece in self._template.generate(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                **self._tokens,
            ):
                room -= len(piece.encode())
                if room < 0:
                    raise TemplateError(
                        f"the chat template gave more than {self._max_rendered_bytes} bytes of text"
                    )
                pieces.append(piece)
        except (TemplateError, TemplateRefusedError):
            raise
        except MemoryError:
            raise TemplateError("the chat template took too much memory") from None
        except Exception as error:  # noqa: BLE001 - a template may raise anything Python has
            raise TemplateError(f"the chat template broke down: {_first_line(error)}") from None
        return "".join(pieces)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusedError(str(message)[:500])


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates want the local date, as elsewhere


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    """Unlike Jinja's own, leaves `<`, `>` and `&` as they are: this is no HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
