"""Constraints of requests: checked before anything is queued, and brought into the form that workers get."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Final, Protocol

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.constraint_limits import (
    MAX_SCHEMA_BYTES,
    check_constraint,
    check_size,
    field_of,
)
from inferflux.common.process.tasks import LARGE_SCHEMA, off_loop_if_large
from inferflux.common.text.constraints.schema import (
    LEVELS,
    NOTHING_MATCHES,
    Schema,
    Unenforced,
    read_schema,
    refuse_unenforced,
)
from inferflux.v1 import generation_pb2, model_pb2, tokenizer_pb2

UNENFORCED_HEADER: Final = "x-inferflux-unenforced"

# Constraints that are known to compile, each by a digest.
_MOST_REMEMBERED = 4096
# Schemas that are kept as they were read.
_MOST_READ = 64


class Compiles(Protocol):
    """Compiles constraints to try them, as `inferflux.gateway.tokenizer.tokenizers.Tokenizers` does."""

    async def compile(
        self, digest: str, constraint: generation_pb2.StructuredConstraint, *, field: str
    ) -> None: ...


def _named(constraint: generation_pb2.StructuredConstraint) -> str:
    """A constraint's name in errors."""
    match constraint.WhichOneof("constraint"):
        case "json_schema":
            return "the schema"
        case "gbnf" | "lark":
            return "the grammar"
        case "regex":
            return "the regular expression"
        case _:
            return "the constraint"


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters with a constraint that has been tried.

    Attributes:
        unenforced: keywords of schemas that the check of the complete answer alone knows.
    """

    params: generation_pb2.GenerationParams
    unenforced: Sequence[Unenforced] = ()


class Constraints:
    """Check constraints. One that does not compile is refused before anything is queued, by its field's name.

    Of a schema that llguidance refuses, more and more is left to the check of the complete answer.
    """

    def __init__(self, compiler: Compiles) -> None:
        self._compiler = compiler
        self._usable: OrderedDict[bytes, None] = OrderedDict()
        # Of schemas that masks cannot hold as they are read first, by a digest.
        self._levels: OrderedDict[bytes, int] = OrderedDict()

    async def checked(self, params: generation_pb2.GenerationParams, card: model_pb2.ModelCard) -> Held:
        """`params` with the constraint as workers get it: a JSON schema is read, for masks and for the check.

        Raises:
            InvalidArgument: the constraint cannot be used, or no worker of the model constrains answers.
            ResourceExhausted, Unavailable, Internal: it could not be tried.
        """
        if not params.HasField("constraint"):
            return Held(params)
        field = field_of(params.constraint)
        if params.constraint.HasField("tool_calls"):
            raise InvalidArgument("tool_calls is not set by clients: give a chat tools", field=field)
        if params.constraint.HasField("syntax") or params.constraint.reasoning or params.constraint.prefix:
            message = "syntax, reasoning and prefix are not set by clients"
            raise InvalidArgument(message, field="params.constraint.syntax")
        if not card.can_constrain:
            message = f"no worker of {card.name} can constrain answers"
            raise InvalidArgument(message, field=field, reason="CONSTRAINT_UNSUPPORTED")
        usable = generation_pb2.GenerationParams()
        usable.CopyFrom(params)
        usable.constraint.ClearField("checked_schema")
        usable.constraint.ClearField("strict")
        if usable.constraint.WhichOneof("constraint") != "json_schema":
            await self._try_named(usable.constraint, card.digest, field)
            return Held(usable)
        text, is_strict = params.constraint.json_schema, params.constraint.strict
        check_size(len(text.encode()), field, most=MAX_SCHEMA_BYTES)
        key = blake2b(text.encode()).digest()
        for level in range(self._levels.get(key, 0), LEVELS):
            schema = await off_loop_if_large(len(text), partial(_read, text, level), above=LARGE_SCHEMA)
            if is_strict:
                refuse_unenforced(schema.unenforced)
            usable.constraint.json_schema = schema.enforced
            usable.constraint.checked_schema = schema.checked if schema.checked != schema.enforced else ""
            check_constraint(usable)  # classes of a pattern may have been spelled out
            try:
                await self._try_named(usable.constraint, card.digest, field)
            except InvalidArgument as error:
                if is_strict or level == LEVELS - 1 or not _is_too_much(error):
                    raise
                continue
            self._remember_level(key, level)
            return Held(usable, schema.unenforced)
        raise RuntimeError("no level is left")

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
        *,
        strict: Container[str] = (),
    ) -> Held:
        """`params` with an answer that is held to these calls.

        Without a worker that constrains answers they stay as they are, unless a call is required.

        Args:
            strict: names of functions whose schemas have to be enforced.

        Raises:
            InvalidArgument: a call is required that cannot be had, or a tool's schema cannot be used.
            ResourceExhausted, Unavailable, Internal: it could not be tried.
        """
        if not card.can_constrain and not calls.is_required:
            return Held(params)
        if not card.can_constrain:
            message = f"tool_choice: no worker of {card.name} can constrain answers"
            raise InvalidArgument(message, field="tool_choice", reason="CONSTRAINT_UNSUPPORTED")
        constrained = generation_pb2.GenerationParams()
        constrained.CopyFrom(params)
        constrained.ClearField("constraint")
        constrained.constraint.tool_calls.CopyFrom(calls)
        left = self._known_levels(constrained.constraint.tool_calls.functions, strict)
        check_constraint(constrained)
        try:
            await self._try(constrained.constraint, card.digest, "tools")
        except InvalidArgument:
            left += await self._relax(constrained.constraint.tool_calls, card.digest, strict)
            check_constraint(constrained)
            await self._try(constrained.constraint, card.digest, "tools")
        return Held(constrained, left)

    def _known_levels(
        self, functions: Iterable[generation_pb2.FunctionSchema], strict: Container[str]
    ) -> list[Unenforced]:
        """Leave to the check what has had to be left before."""
        left: list[Unenforced] = []
        for function in functions:
            level = self._levels.get(_key_of(function), 0)
            if level and function.name not in strict:
                left += _leave(function, level)
        return left

    async def _relax(
        self, calls: generation_pb2.ToolCallsConstraint, model_digest: str, strict: Container[str]
    ) -> list[Unenforced]:
        """Try the functions one by one, and leave to the check what masks cannot hold of each.

        Raises:
            InvalidArgument: naming the first one that cannot be used.
        """
        left: list[Unenforced] = []
        for function in calls.functions:
            alone = generation_pb2.StructuredConstraint(tool_calls=calls)
            del alone.tool_calls.functions[:]
            alone.tool_calls.functions.append(function)
            more: list[Unenforced] = []
            key = _key_of(function)
            for level in range(1, LEVELS + 1):
                try:
                    await self._try(alone, model_digest, "tools")
                    break
                except InvalidArgument as error:
                    if level == LEVELS or function.name in strict or error.reason != "BAD_CONSTRAINT":
                        message = f"the tool {function.name}: {error.message}"
                        raise InvalidArgument(message, field="tools", reason=error.reason) from None
                more = _leave(alone.tool_calls.functions[0], level)
                self._remember_level(key, level)
            function.CopyFrom(alone.tool_calls.functions[0])
            left += more
        return left

    def _remember_level(self, key: bytes, level: int) -> None:
        if level:
            self._levels[key] = level
            self._levels.move_to_end(key)
            if len(self._levels) > _MOST_REMEMBERED:
                self._levels.popitem(last=False)

    async def _try_named(
        self, constraint: generation_pb2.StructuredConstraint, model_digest: str, field: str
    ) -> None:
        try:
            await self._try(constraint, model_digest, field)
        except InvalidArgument as error:
            if error.reason != "BAD_CONSTRAINT":
                raise
            message = f"{_named(constraint)} cannot be used: {error.message}"
            raise InvalidArgument(message, field=error.field, reason=error.reason) from None

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


def _is_too_much(error: InvalidArgument) -> bool:
    """True if masks may hold less of the schemas. A schema that nothing matches is refused in any case."""
    return error.reason == "BAD_CONSTRAINT" and NOTHING_MATCHES not in error.message


def _key_of(function: generation_pb2.FunctionSchema) -> bytes:
    return blake2b((function.checked_parameters or function.parameters).encode()).digest()


def _leave(function: generation_pb2.FunctionSchema, level: int) -> list[Unenforced]:
    """Have masks hold less of a function's arguments. Returns what is left to the check."""
    schema = _read(function.checked_parameters or function.parameters, level, is_arguments=True)
    function.parameters = schema.enforced
    function.checked_parameters = schema.checked if schema.checked != schema.enforced else ""
    return [Unenforced(left.keyword, function.name + left.path) for left in schema.unenforced]


@lru_cache(_MOST_READ)
def _read(text: str, level: int, *, is_arguments: bool = False) -> Schema:
    return read_schema(text, level=level, is_arguments=is_arguments)
