"""The grammar of a whole answer: a thought, then content, calls, or both (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from inferflux.v1 import generation_pb2

from .arguments import arguments_of
from .lark import ANY, BLANKS, ControlToken, Lark, SpellingError, loose_pattern, pattern_of, quoted
from .schemas import Root

OPEN: Final = generation_pb2.REASONING_FORMAT_OPEN
_PLACEHOLDER = re.compile(r"(\$(?:name|arguments|id|index|number)(?![a-z]))")
_OTHERS: Final = {"$id": r"[A-Za-z0-9_-]{1,64}", "$index": "[0-9]{1,3}", "$number": "[0-9]{1,3}"}
_MARKS = re.compile(r"\]<\]\w+\[>\[|<[^<>\s]*>?|\[[^\[\]\s]*\]?|[^<\[\s]+\s*|\s+")
_MAY_HAVE_BLANKS: Final = (
    generation_pb2.ARGUMENT_STYLE_JSON,
    generation_pb2.ARGUMENT_STYLE_TEXT,
    generation_pb2.ARGUMENT_STYLE_NESTED,
)
# Behind the arguments, models leave an id out.
_ID = re.compile(r'(,\s*"\w+":\s*")\$id"')
_ID_BEHIND_NAME = re.compile(r"(\[[^\[\]\s]*\]|<[^<>\s]*>)\$id(?=[\[<])")
# In a call that is no JSON a name stands among signs.
_UNSAFE_NAME: Final = re.compile(r"[\x00-\x20\x7f<>\"'|=,;(){}\[\]\\]")


def lark_of(
    syntax: generation_pb2.AnswerSyntax,
    *,
    reasoning: generation_pb2.ReasoningFormat.ValueType,
    calls: generation_pb2.ToolCallsConstraint | None,
    content: str,
    json_options: Mapping[str, Any],
    control: ControlToken,
    ends: AbstractSet[int] = frozenset(),
) -> str:
    """llguidance's Lark of an answer.

    Args:
        reasoning: what of it may be a thought.
        calls: what it may call, as `limits` takes them; schemas are those that are enforced. None: nothing.
        content: terms of the content; "" for any text.
        json_options: llguidance's, for every schema.
        control: which markers are control tokens.
        ends: control tokens that end a generation.

    Raises:
        SpellingError: a name cannot be written in this syntax.
    """
    return _Answer(syntax, reasoning, calls, content, json_options, Lark(control, ends)).text()


class _Answer:
    def __init__(
        self,
        syntax: generation_pb2.AnswerSyntax,
        reasoning: generation_pb2.ReasoningFormat.ValueType,
        calls: generation_pb2.ToolCallsConstraint | None,
        content: str,
        json_options: Mapping[str, Any],
        lark: Lark,
    ) -> None:
        self._syntax = syntax
        self._reasoning = reasoning if syntax.HasField("thought") else 0
        self._calls = calls
        self._content = content
        self._options = json_options
        self._lark = lark
        self._arguments = arguments_of(syntax.calls, lark, json_options)

    def text(self) -> str:
        noise = self._noise()
        self._lark.rule("start", " ".join(filter(None, [self._thoughts(), noise, "answer", noise])))
        self._lark.rule("answer", " | ".join(self._answers()))
        return self._lark.text()

    def _noise(self) -> str:
        """Structure that belongs to nothing, around an answer."""
        texts = [one for one in self._syntax.noise if not one.startswith(self._trigger or one)]
        return f"({' | '.join(map(self._dropped, texts))})*" if texts else ""

    def _thoughts(self) -> str:
        """Write what comes before the answer."""
        if not self._reasoning:
            return ""
        thought = self._syntax.thought
        is_message = self._syntax.HasField("channels")
        # Else text may begin with the same blanks.
        spelled = self._lark.loose if is_message else self._lark.loose_from_blanks
        begin = spelled(thought.begin) if thought.begin.strip() else ""
        whole = f"({begin} {self._lark.until(thought.end)})"
        other = f" | {self._preamble()}" if self._syntax.channels.recipient else ""
        more = f"({whole}{other})*" if is_message else ""
        if self._reasoning == OPEN:
            return f"{self._lark.until(thought.end)} {more}".strip()
        # Some templates show a thought without a text as its end alone.
        return more or f"({whole} | {self._lark.loose_from_blanks(thought.end.strip())})?"

    def _preamble(self) -> str:
        """A message before calls that is content."""
        channel = self._syntax.calls.call.partition(" to=")[0]
        begin = self._lark.loose(channel + self._syntax.channels.header_end)
        return f"{begin} {self._lark.until(self._syntax.thought.end)}"

    def _answers(self) -> list[str]:
        """All that may come after the thought."""
        calls = None if self._calls is None else self._written_calls(self._calls)
        if calls is None:
            return [self._held_content() if self._content else self._free_content()]
        begins = [self._terms(one, blanks=True) for one in self._syntax.calls.optional_begins]
        begin = f"({' | '.join(begins)})? " if begins else ""
        only_calls = f"{self._empty_content()} {begin}{calls}".strip()
        if self._calls and self._calls.is_required:
            return [only_calls]
        if self._content:
            return [self._held_content(), only_calls]
        if self._syntax.HasField("channels") and self._syntax.content_begin:
            return [self._free_content(), only_calls]
        if self._is_whole:
            return [self._text(*self._excluded()), only_calls]
        return self._text_and_calls(calls)

    def _empty_content(self) -> str:
        """Content without a text, before calls. The prompt may have its beginning."""
        if self._syntax.HasField("channels") or not self._syntax.content_end:
            return ""
        begin, end = (self._dropped(one) for one in (self._syntax.content_begin, self._syntax.content_end))
        return f"(({begin})? {end})?"

    def _dropped(self, text: str) -> str:
        """A marker of content, as readers know it, and blanks before it."""
        return f"{self._lark.blanks()} {self._lark.exact(text.strip())}" if text.strip() else ""

    def _free_content(self) -> str:
        """Any text as content."""
        text = self._text()
        if not self._syntax.content_begin.strip():
            return text
        end = self._lark.last(self._syntax.content_end)
        closed = f"({end})?" if end else ""
        is_needed = self._syntax.HasField("channels")
        spelled = self._lark.loose if is_needed else self._lark.exact
        begin = spelled(self._syntax.content_begin.strip())
        marked = " ".join(filter(None, [self._lark.blanks(), begin, text, closed]))
        return marked if is_needed else f"({marked} | {text} {closed})"

    def _held_content(self) -> str:
        """Content of which the constraint says what it is."""
        begin = self._lark.loose(self._syntax.content_begin)
        end = self._lark.last(self._syntax.content_end)
        if begin and not self._syntax.HasField("channels"):
            begin = f"({begin} {self._lark.blanks()})?"
        blanks = self._lark.blanks() if begin or self._reasoning else ""
        return " ".join(filter(None, [blanks, begin, self._content, f"({end})?" if end else ""]))

    def _text_and_calls(self, calls: str) -> list[str]:
        """Free text up to what opens a call; from there on calls."""
        (first, *_) = self._lark.pieces(self._trigger)
        if isinstance(first, int):
            content = self._free_content()
            return [content, f"{content if self._syntax.content_end else self._text()} {calls}"]
        mark = pattern_of(self._trigger)
        head = self._lark.rule("head", self._lark.shared("HEAD", self._body(mark)), of="[lazy]")
        free = [self._text(f"~/{ANY}{mark}{ANY}/"), f"{head} {calls}"]
        begins = [one for one in self._syntax.noise if one.startswith(self._trigger)]
        if not begins:
            return free
        lead = " | ".join(self._lark.loose(one) for one in begins)
        return [f"({lead}) ({' | '.join(free)})", f"{self._lark.exact(self._trigger)} {calls}"]

    def _text(self, *conditions: str) -> str:
        return self._lark.shared("TEXT", self._body("", *conditions)) + "?"

    def _body(self, mark: str, *conditions: str) -> str:
        """A terminal of any text; one that begins with a thought is a thought."""
        whole = [f"/{ANY}{mark}/", *conditions]
        begin = self._syntax.thought.begin.strip()
        if self._reasoning and self._reasoning != OPEN and begin:
            (first, *_) = self._lark.pieces(begin)
            if isinstance(first, str):
                whole.append(rf"~/\s*{pattern_of(first.split()[0])}{ANY}/")
        return " & ".join(whole)

    def _excluded(self) -> list[str]:
        """Texts that begin as a call does which is the whole answer."""
        common, parts = self._split()
        head = loose_pattern(self._syntax.calls.begin + common)
        if self._calls and not self._is_json:
            names = "|".join(pattern_of(function.name) for function in self._calls.functions)
            head += f"({names}){loose_pattern(parts[0].removeprefix('$name'))}"
        excluded = [rf"~/\s*{head}{ANY}/"]
        for begin in self._syntax.calls.optional_begins:
            (first, *_) = self._lark.pieces(begin.strip()) or [0]
            if isinstance(first, str):
                excluded.append(rf"~/\s*{pattern_of(first.strip())}{ANY}/")
        return excluded

    @property
    def _is_whole(self) -> bool:
        return self._syntax.calls.is_whole_answer

    @property
    def _is_json(self) -> bool:
        """Return whether a call is one JSON object, with the name in it."""
        return bool(re.search(r'\{[^<>]*"\$name"', self._syntax.calls.call))

    @property
    def _trigger(self) -> str:
        """The text from which on an answer is a call: the first markers of a run that neither content nor a
        thought begin with."""
        opening = (self._syntax.calls.begin + _PLACEHOLDER.split(self._syntax.calls.call)[0]).strip()
        others = (self._syntax.content_begin.strip(), self._syntax.thought.begin.strip())
        text = ""
        for part in _MARKS.findall(opening):
            text += part
            if not any(other.startswith(text) for other in others):
                break
        return text.rstrip()

    def _written_calls(self, calls: generation_pb2.ToolCallsConstraint) -> str:
        """All calls of a run. What opens them is left out where it ends free text."""
        form = self._syntax.calls
        if self._is_whole and self._content and not form.begin and form.call.startswith("{"):
            objects = (json.dumps(self._as_object(one), ensure_ascii=False) for one in calls.functions)
            return f"({' | '.join(f'%json {one}' for one in objects)})"
        common, parts = self._split()
        if self._syntax.channels.recipient:
            return self._addressed(calls)
        if "$name" in form.begin:
            return self._named_runs(calls)
        self._lark.rule("call", " | ".join(self._function(one, parts) for one in calls.functions))
        begin, first, lead = form.begin, common, self._terms(common)
        if begins_behind_text := self._opens_with_text():
            opening = begin + common
            rest = opening[opening.index(self._trigger) + len(self._trigger) :]
            begin, first = "", "\n" + rest.lstrip()
        # Text and thoughts may begin with the same blanks.
        call = f"{self._terms(begin + first, blanks=not begins_behind_text)} call"
        if self._is_whole and not self._is_json:
            heads = (self._function(one, parts, before=begin + common) for one in calls.functions)
            call = self._lark.rule("whole", " | ".join(heads))
        more = ""
        if not calls.is_single and not form.is_single:
            more = f"({self._terms(form.separator) or self._lark.blanks()} {lead} call)*"
        if more and not form.end.strip():
            more += f" {self._lark.blanks()}"
        return " ".join(filter(None, [call, more, self._lark.last(form.end)]))

    def _named_runs(self, calls: generation_pb2.ToolCallsConstraint) -> str:
        """Runs of one function, which names it where it begins."""
        common, parts = self._split()
        end = self._lark.last(self._syntax.calls.end)
        runs = []
        for function in calls.functions:
            opening = self._syntax.calls.begin.replace("$name", self._name(function.name)) + common
            begin = f"{self._lark.blanks()} {self._terms(opening)}"
            runs.append(" ".join(filter(None, [begin, self._function(function, parts), end])))
        run = self._lark.rule("run", " | ".join(runs))
        if not self._syntax.HasField("channels") or calls.is_single:
            return run
        return f"{run} ({self._lark.loose(self._syntax.thought.end)} {run})*"

    def _addressed(self, calls: generation_pb2.ToolCallsConstraint) -> str:
        """A message to a function, whose name is in its header, before or behind the channel."""
        header, _, after = self._syntax.calls.call.partition("$arguments")
        channel, _, rest = header.partition(f"to={self._syntax.channels.recipient}$name")
        thought = self._syntax.thought.begin.partition(self._syntax.channels.header_end)[0]
        form, end = rest.removesuffix(self._syntax.channels.header_end), self._syntax.channels.header_end
        # Models leave out the marker before the form of the arguments.
        unmarked = _MARKS.sub(_unmarked, form).strip()
        forms = [self._lark.loose(form), self._lark.exact(f" {unmarked}")]
        shape = f"({' | '.join(forms)})? {self._lark.loose(end)}"
        messages = []
        for function in calls.functions:
            to = quoted(f"to={self._syntax.channels.recipient}{self._name(function.name)}")
            begin = f"({self._lark.loose(channel.strip())} | {self._lark.loose(thought)})"
            heads = f'({begin} " " {to} | {to} {begin})'
            last = self._lark.last(after)
            messages.append(
                f"{heads} {shape} {self._arguments.of(json.loads(function.parameters))} {last}".strip()
            )
        return f"{self._lark.blanks()} ({' | '.join(messages)})"

    def _as_object(self, function: generation_pb2.FunctionSchema) -> Mapping[str, Any]:
        """The schema of a call that is one JSON object: content that is JSON, too, begins as it does."""
        schema = json.loads(function.parameters)
        whole = dict(Root(schema).alone(schema))
        moved = {"$defs": whole.pop("$defs")} if "$defs" in whole else {}
        (name,) = re.findall(r'"(\w+)":\s*"\$name"', self._syntax.calls.call)
        (arguments,) = re.findall(r'"(\w+)":\s*\$arguments', self._syntax.calls.call)
        return {
            "type": "object",
            "properties": {name: {"const": function.name}, arguments: whole},
            "required": [name, arguments],
            "additionalProperties": False,
            "x-guidance": dict(self._options),
            **moved,
        }

    def _opens_with_text(self) -> bool:
        """Return whether free text comes before calls, which a text opens."""
        is_free = self._calls is not None and not self._calls.is_required and not self._content
        if not is_free or self._is_whole or self._syntax.HasField("channels"):
            return False
        (first, *_) = self._lark.pieces(self._trigger)
        return isinstance(first, str)

    def _split(self) -> tuple[str, Sequence[str]]:
        """(what all calls begin with, the parts that follow)."""
        common, *parts = re.split(r"(?=\$(?:name|arguments)(?![a-z]))", self._syntax.calls.call)
        return common, parts

    def _terms(self, text: str, *, blanks: bool = False) -> str:
        """Terms of a text with numbers and ids.

        Args:
            blanks: whether its first terminal begins with some.
        """
        made = []
        if self._is_json and (found := _ID.search(text)):
            before, after = text[: found.start()], text[found.end() :]
            lead, quote = self._lark.loose(found[1]), quoted('"')
            return f"{self._terms(before)} ({lead} /{_OTHERS['$id']}/ {quote})? {self._terms(after)}".strip()
        for part in filter(None, _PLACEHOLDER.split(text)):
            if part in _OTHERS:
                made.append(f"/{_OTHERS[part]}/" if self._is_json else f"/{_OTHERS[part]}[ ]?/")
            elif blanks and not made:
                made.append(self._lark.loose_from_blanks(part))
            else:
                made.append(self._lark.loose(part))
        return " ".join(filter(None, made))

    def _function(
        self, function: generation_pb2.FunctionSchema, parts: Sequence[str], *, before: str | None = None
    ) -> str:
        """The rule of a call of this function, from its name on.

        Args:
            before: what is a terminal together with its name.
        """
        form = self._syntax.calls
        name = self._name(function.name)
        is_last = self._calls is not None and (self._calls.is_single or form.is_single) and not form.end
        terms = []
        for i, part in enumerate(parts):
            which, rest = ("$name", part[5:]) if part.startswith("$name") else ("$arguments", part[10:])
            if which == "$arguments":
                terms.append(self._arguments.of(json.loads(function.parameters)))
                if form.style in _MAY_HAVE_BLANKS and rest.strip():
                    terms.append(self._lark.blanks())
            elif before is not None:
                terms.append(f"/{BLANKS}{loose_pattern(before + name + rest)}/")
                continue
            else:
                terms.append(quoted(name))
            if self._is_whole and '"parameters"' in rest:
                other = self._terms(rest.replace('"parameters"', '"arguments"'))
                terms.append(f"({self._terms(rest)} | {other})")
                continue
            is_end = is_last and i == len(parts) - 1
            if own_id := _ID_BEHIND_NAME.match(rest):
                terms.append(f"({self._terms(own_id[0])})?")
                rest = rest[own_id.end() :]
            if which == "$arguments" and form.style != generation_pb2.ARGUMENT_STYLE_JSON:
                terms += [self._tail(rest), "" if is_end else self._lark.loose(rest[len(rest.rstrip()) :])]
            else:
                terms.append(self._lark.last(rest) if is_end else self._terms(rest))
        return self._lark.rule(self._lark.fresh("call"), " ".join(filter(None, terms)))

    def _tail(self, text: str) -> str:
        """Terms that end a call that is no JSON: readers take each line as one marker."""
        lines = [self._lark.exact(line.strip()) for line in text.splitlines() if line.strip()]
        return f" {self._lark.blanks()} ".join(lines)

    def _name(self, name: str) -> str:
        if self._is_json:
            return json.dumps(name, ensure_ascii=False)[1:-1]
        if _UNSAFE_NAME.search(name):
            raise SpellingError(f"the name {name[:64]!r} cannot be written in this model's calls")
        return name


def _unmarked(mark: re.Match[str]) -> str:
    """A mark in angle brackets is left out."""
    return "" if mark[0].startswith("<") else mark[0]
