"""The Jinja environment of chat templates: it reaches nothing, and its loops are counted.

Whitespace handling, extensions, filters and functions are those of Hugging Face Transformers, for which
models' templates are written. Beyond it, lists have `append` and `pop`, generators are JSON
arrays, and `from_json` reads JSON: published templates use them, and llama.cpp has them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_COUNTED = "counted_steps"
_LIST_METHODS = frozenset({"append", "pop"})


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


class Sandbox(ImmutableSandboxedEnvironment):
    """Renders in any thread; each rendering counts its own steps."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
        )
        self.filters |= {"tojson": _to_json, "from_json": json.loads, _COUNTED: self._counted}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._steps = threading.local()

    @contextmanager
    def at_most(self, steps: int) -> Iterator[None]:
        """Bound what renderings of this thread do: passes of loops and calls, together.

        Raises:
            TemplateError: from within, when there are more.
        """
        self._steps.left = steps
        yield

    def counting_loops(self, tree: nodes.Template) -> nodes.Template:
        """A parsed template that counts the passes of its loops. A loop cannot run on without one, and what
        recurs does so by calls."""
        for loop in tree.find_all(nodes.For):
            counted = nodes.Filter(loop.iter, _COUNTED, [], [], None, None)
            loop.iter = counted.set_lineno(loop.lineno).set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in _LIST_METHODS) or super().is_safe_attribute(
            obj, attr, value
        )

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063
        __self._take(1)
        return super().call(__context, __obj, *args, **kwargs)

    def _take(self, steps: int) -> None:
        self._steps.left -= steps
        if self._steps.left < 0:
            raise TemplateError("the chat template does not come to its end: too many passes of its loops")

    def _counted(self, value: Any) -> Any:
        if isinstance(value, Sized):
            self._take(len(value))
            return value
        return self._counting(value)

    def _counting(self, values: Iterable[Any]) -> Generator[Any]:
        for value in values:
            self._take(1)
            yield value


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusedError(str(message)[:500])


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates want the local date, as elsewhere


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    """Unlike Jinja's own, leaves `<`, `>` and `&` as they are: this is no HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=_plain, **rest)


def _plain(value: Any) -> Any:
    if isinstance(value, Generator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def today() -> dict[str, str]:
    """The variables in which templates look for the date, spelt as llama.cpp does."""
    now = datetime.now()  # noqa: DTZ005 - as above
    return {"date_string": f"{now:%d %b %Y}", "datetime": f"{now:%b %d %Y}"}
