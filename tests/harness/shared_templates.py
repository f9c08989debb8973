"""The chat templates of published models, where they are beside the checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from inferflux.common.text.chat_templates.templates import ChatTemplate

FOLDER = Path(__file__).parents[3] / "shared/data/chat-templates"
SOURCES = {path.stem: path for path in sorted(FOLDER.glob("*.jinja"))}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

needs_templates = pytest.mark.skipif(not SOURCES, reason=f"there are no templates in {FOLDER}")
of_each_template = pytest.mark.parametrize("name", SOURCES or ["none"])


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[name].read_text(), tokens=TOKENS, max_rendered_bytes=1 << 20)
