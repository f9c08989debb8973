"""The chat template of the project's own models, rendered by Jinja alone."""

from __future__ import annotations

import json
from typing import Any

import jinja2

from tools.llama_gguf import CHAT_TEMPLATE


class RefusedError(Exception):
    """What the template raised."""


def refuse(message: str) -> None:
    raise RefusedError(message)


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    environment.filters["tojson"] = json.dumps
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, tools=tools, add_generation_prompt=True)
