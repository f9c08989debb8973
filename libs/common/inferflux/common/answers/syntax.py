"""How families of models spell their tool calls. One definition for grammars and for the parser (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inferflux.v1 import generation_pb2

THINK: Final = "<think>"
END_THINK: Final = "</think>"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One family's way. A call is `{"name": ..., KEY: {...}}`.

    Attributes:
        opening: what calls begin with. Empty: a call is the whole answer.
        optional_opening: what may come before a call that is the whole answer.
        lead: between the opening and the first call.
        key: the name of the arguments.
        tail: between the last call and the closing.
        closing: what ends the calls.
        separator: between two calls that share an opening; empty where each call has its own.
        between: the same, or all that is between two calls, as the model spells it. Empty: there is one call.
    """

    opening: str
    key: str
    lead: str = ""
    tail: str = ""
    closing: str = ""
    separator: str = ""
    between: str = ""
    optional_opening: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be one control token of a vocabulary."""
        return tuple(filter(None, (self.opening, self.closing, self.optional_opening, THINK, END_THINK)))


SYNTAXES: Final[Mapping[int, CallSyntax]] = {
    generation_pb2.TOOL_CALL_FORMAT_HERMES: CallSyntax(
        opening="<tool_call>",
        key="arguments",
        lead="\n",
        tail="\n",
        closing="</tool_call>",
        between="\n</tool_call>\n<tool_call>\n",
    ),
    # Its templates refuse a conversation in which a message has two calls.
    generation_pb2.TOOL_CALL_FORMAT_LLAMA3: CallSyntax(
        opening="", key="parameters", separator=";", optional_opening="<|python_tag|>"
    ),
    generation_pb2.TOOL_CALL_FORMAT_MISTRAL: CallSyntax(
        opening="[TOOL_CALLS]", key="arguments", lead="[", closing="]", separator=",", between=", "
    ),
}
