"""Chat templates: Jinja as models carry it, in a sandbox that cannot reach or change anything.

The sandbox does not limit time or memory: its caller does (see `tokenizer_process`).
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeAlias

import jinja2
from jinja2 import meta, nodes

from .sandbox import Sandbox, TemplateError, TemplateRefusedError, today

__all__ = ["ChatTemplate", "Json", "TemplateError", "TemplateRefusedError"]

Json: TypeAlias = dict[str, Any]

MAX_TEMPLATE_BYTES = 256 << 10
# Passes of loops and calls in one rendering, and bytes, where a template is tried out.
_TRIAL_STEPS, _TRIAL_BYTES = 100_000, 1 << 20

# Methods by which a template looks for a text in a message.
_SEARCHES = frozenset({"split", "rsplit", "partition", "rpartition", "find", "startswith", "endswith"})


class ChatTemplate:
    """One model's template, compiled.

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
        self._sandbox = Sandbox()
        try:
            tree = self._sandbox.parse(source)
            # Texts that it looks for in others.
            self.looked_for = frozenset(_looked_for(tree))
            self._words = _words(tree)
            self._compared = _compared(tree)
            # Names that it reads and does not set. This folds constants of the tree, as compiling does.
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            self._template = self._sandbox.from_string(self._sandbox.counting_loops(tree))
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise TemplateError(f"the chat template does not parse: {_first_line(error)}") from None
        self.source = source
        self.tokens = tokens
        self._max_rendered_bytes = max_rendered_bytes
        self._max_steps = sys.maxsize

    def compared_with(self, variable: str) -> frozenset[str]:
        """Texts with which the template compares a variable."""
        return self._compared.get(variable, frozenset())

    def knows(self, word: str) -> bool:
        """Return whether a text, or the name of an attribute, is in the template's code."""
        return word in self._words

    def words_like(self, pattern: str) -> list[str]:
        """Names and texts of the template's code that match in whole, in the order of the alphabet."""
        return sorted(word for word in self._words if re.fullmatch(pattern, word))

    @cached_property
    def trial(self) -> Self:
        """The same template with small bounds: to see what it does with messages of our own."""
        other = copy.copy(self)
        other.__dict__ |= {"_max_steps": _TRIAL_STEPS, "_max_rendered_bytes": _TRIAL_BYTES}
        return other

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        switches: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages, tools: as Hugging Face's templates expect them, nearly OpenAI's.
            switches: other variables of the template, by name.
            add_generation_prompt: whether the prompt is ready for the assistant's answer.

        Raises:
            TemplateRefusedError: with the template's own words.
            TemplateError: the template broke down, or gave too much text.
        """
        variables = self._variables(tools) | dict(switches or {})
        variables["add_generation_prompt"] = add_generation_prompt
        try:
            return self._render(messages, list(tools) or None, variables)
        except TemplateError:
            if tools or "tools" not in self.variables:
                raise
            # Templates that are for tools alone take an empty list.
            return self._render(messages, [], variables)

    def _variables(self, tools: Sequence[Mapping[str, Any]]) -> Json:
        """Return what templates find beside messages, where they look for it."""
        given: Json = dict(self.tokens)
        given |= {name: text for name, text in today().items() if name in self.variables}
        if "functions" in self.variables:
            given["functions"] = json.dumps(list(tools), indent=2, ensure_ascii=False) if tools else ""
        return given

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Json,
    ) -> str:
        pieces: list[str] = []
        room = self._max_rendered_bytes
        # A template may change lists.
        changes = self.knows("append") or self.knows("pop")
        given = copy.deepcopy(list(messages)) if changes else list(messages)
        try:
            with self._sandbox.at_most(self._max_steps):
                for piece in self._template.generate({**variables, "messages": given, "tools": tools}):
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


def _constants(node: nodes.Node) -> Iterator[nodes.Const]:
    """Texts of an expression."""
    own = [node] if isinstance(node, nodes.Const) else []
    return (each for each in (*own, *node.find_all(nodes.Const)) if isinstance(each.value, str))


def _words(tree: nodes.Template) -> frozenset[str]:
    names = {each.attr for each in tree.find_all(nodes.Getattr)}
    return frozenset(names | {each.value for each in _constants(tree)})


def _compared(tree: nodes.Template) -> dict[str, frozenset[str]]:
    """Texts with which each variable is compared."""
    found: dict[str, frozenset[str]] = {}
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        texts = {each.value for side in sides for each in _constants(side)}
        for side in sides:
            for name in [side] if isinstance(side, nodes.Name) else side.find_all(nodes.Name):
                found[name.name] = found.get(name.name, frozenset()) | texts
    return found


def _looked_for(tree: nodes.Template) -> Iterator[str]:
    """Texts that the template looks for in others."""
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            yield from (each.value for each in _constants(compare.expr))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _SEARCHES:
            yield from (each.value for argument in call.args for each in _constants(argument))


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
