"""Constraints of requests: checked before anything is queued, and brought into the form that workers get."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Protocol

from inferflux.common.constraints.limits import check_constraint, field_of
from inferflux.common.constraints.schema import normalised
from inferflux.common.errors import InvalidArgument
from inferflux.v1 import generation_pb2, model_pb2, tokenizer_pb2

from .off_loop import LARGE_SCHEMA, off_loop_if_large

# Constraints that are known to compile, each by a digest.
_MOST_REMEMBERED = 4096


class Compiles(Protocol):
    """Who tries a constraint; `inferflux.gateway.tokenizers.Tokenizers` does."""

    async def compile(
        self, digest: str, constraint: generation_pb2.StructuredConstraint, *, field: str
    ) -> None: ...


def _named(constraint: generation_pb2.StructuredConstraint) -> str:
    """What people call it."""
    match constraint.WhichOneof("constraint"):
        case "json_schema":
            return "the schema"
        case "gbnf" | "lark":
            return "the grammar"
        case "regex":
            return "the regular expression"
        case _:
            return "the constraint"


class Constraints:
    """What does not compile is refused before anything is queued, by the name of its field."""

    def __init__(self, compiler: Compiles) -> None:
        self._compiler = compiler
        self._usable: OrderedDict[bytes, None] = OrderedDict()

    async def checked(
        self, params: generation_pb2.GenerationParams, card: model_pb2.ModelCard
    ) -> generation_pb2.GenerationParams:
        """`params` with the constraint as workers get it: a JSON schema is normalised.

        Raises:
            InvalidArgument: the constraint cannot be used, or no worker of the model constrains answers.
            ResourceExhausted, Unavailable, Internal: it could not be tried.
        """
        if not params.HasField("constraint"):
            return params
        if params.constraint.HasField("tool_calls"):
            message = "tool_calls is not set by clients: give a chat tools"
            raise InvalidArgument(message, field=field_of(params.constraint))
        if params.constraint.HasField("syntax") or params.constraint.reasoning or params.constraint.prefix:
            message = "syntax, reasoning and prefix are not set by clients"
            raise InvalidArgument(message, field="params.constraint.syntax")
        if not card.can_constrain:
            message = f"no worker of {card.name} can constrain answers"
            raise InvalidArgument(message, field=field_of(params.constraint), reason="CONSTRAINT_UNSUPPORTED")
        usable = generation_pb2.GenerationParams()
        usable.CopyFrom(params)
        if usable.constraint.WhichOneof("constraint") == "json_schema":
            schema = usable.constraint.json_schema
            read = await off_loop_if_large(len(schema), lambda: normalised(schema), above=LARGE_SCHEMA)
            usable.constraint.json_schema = read
            check_constraint(usable)  # classes of a pattern may have been spelled out
        try:
            await self._try(usable.constraint, card.digest, field_of(usable.constraint))
        except InvalidArgument as error:
            if error.reason != "BAD_CONSTRAINT":
                raise
            message = f"{_named(usable.constraint)} cannot be used: {error.message}"
            raise InvalidArgument(message, field=error.field, reason=error.reason) from None
        return usable

    async def within(
        self,
        params: generation_pb2.GenerationParams,
        chat: tokenizer_pb2.RenderedChat,
        card: model_pb2.ModelCard,
    ) -> generation_pb2.GenerationParams:
        """`params`, whose constraint was checked, with what an answer may have around its content: a thought.

        Raises:
            InvalidArgument, ResourceExhausted, Unavailable, Internal: it could not be tried.
        """
        is_plain = not (chat.reasoning or chat.prefix or chat.syntax.content_begin)
        if not params.HasField("constraint") or is_plain:
            return params
        made = generation_pb2.GenerationParams()
        made.CopyFrom(params)
        made.constraint.syntax.CopyFrom(chat.syntax)
        made.constraint.syntax.ClearField("calls")
        made.constraint.reasoning, made.constraint.prefix = chat.reasoning, chat.prefix
        await self._try(made.constraint, card.digest, field_of(made.constraint))
        return made

    async def with_tool_calls(
        self,
        params: generation_pb2.GenerationParams,
        calls: generation_pb2.ToolCallsConstraint,
        card: model_pb2.ModelCard,
    ) -> generation_pb2.GenerationParams:
        """`params` with an answer that is held to these calls.

        Without a worker that constrains answers they stay as they are, unless a call is required.

        Raises:
            InvalidArgument: a call is required that cannot be had, or a tool's schema cannot be used.
            ResourceExhausted, Unavailable, Internal: it could not be tried.
        """
        if not card.can_constrain and not calls.is_required:
            return params
        if not card.can_constrain:
            message = f"tool_choice: no worker of {card.name} can constrain answers"
            raise InvalidArgument(message, field="tool_choice", reason="CONSTRAINT_UNSUPPORTED")
        constrained = generation_pb2.GenerationParams()
        constrained.CopyFrom(params)
        constrained.ClearField("constraint")
        constrained.constraint.tool_calls.CopyFrom(calls)
        check_constraint(constrained)
        try:
            await self._try(constrained.constraint, card.digest, "tools")
        except InvalidArgument as error:
            await self._blame(calls, card.digest)
            raise error from None
        return constrained

    async def _blame(self, calls: generation_pb2.ToolCallsConstraint, model_digest: str) -> None:
        """Try the functions one by one, so that the first bad one is named."""
        for function in calls.functions:
            alone = generation_pb2.StructuredConstraint(tool_calls=calls)
            del alone.tool_calls.functions[:]
            alone.tool_calls.functions.append(function)
            try:
                await self._try(alone, model_digest, "tools")
            except InvalidArgument as error:
                message = f"the tool {function.name}: {error.message}"
                raise InvalidArgument(message, field="tools", reason=error.reason) from None

    async def _try(
        self, constraint: generation_pb2.StructuredConstraint, model_digest: str, field: str
    ) -> None:
        digest = blake2b(
            model_digest.encode() + b"\0" + constraint.SerializeToString(deterministic=True)
        ).digest()
        if digest in self._usable:
            self._usable.move_to_end(digest)
            return
        await self._compiler.compile(model_digest, constraint, field=field)
        self._usable[digest] = None
        if len(self._usable) > _MOST_REMEMBERED:
            self._usable.popitem(last=False)
