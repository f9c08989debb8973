"""A model's chat templates: they render conversations, in the form in which each reads them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.chat_templates.capabilities import END_THINK, THINK, Capabilities
from inferflux.common.text.chat_templates.conversation import Message, as_read
from inferflux.common.text.chat_templates.generic_tools import with_generic_tools
from inferflux.common.text.chat_templates.probe import ToolSupport, prefix_of, reasoning_of, tool_support
from inferflux.common.text.chat_templates.switches import SwitchError, switches_of
from inferflux.common.text.chat_templates.templates import (
    ChatTemplate,
    Json,
    TemplateError,
    TemplateRefusedError,
)
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2

from .control_texts import ControlTexts
from .image_markers import ImageMarkers
from .template_messages import described, template_messages, template_tools
from .tokenizer_fault import TokenizerFaultError

# Stands at the end of a message that is continued: Hugging Face's, which some templates know.
_END = "CONTINUE_FINAL_MESSAGE_TAG "


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and how its answer is to be read.

    Attributes:
        parts: the prompt. A token is within one of them. A number is an image, the first one being 0.
        syntax: how the answer is written.
        prefix: the end of the prompt, where the answer's spelling begins there.
    """

    parts: Sequence[str | int]
    reasoning: generation_pb2.ReasoningFormat.ValueType
    syntax: generation_pb2.AnswerSyntax
    prefix: str

    @property
    def n_images(self) -> int:
        return sum(isinstance(part, int) for part in self.parts)

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Asked:
    """How a conversation is to be rendered.

    Attributes:
        switches: variables of the template by name.
        effort: how long the model shall think, or empty.
        may_lack: whether what the template has no switch for is left out.
        continues: whether the last message is begun only.
        begins_answer: whether the prompt ends where the assistant's answer begins.
    """

    switches: Json = field(default_factory=dict)
    effort: str = ""
    may_lack: bool = False
    continues: bool = False
    begins_answer: bool = True

    @classmethod
    def of(cls, chat: tokenizer_pb2.RenderChat) -> Asked:
        """Read a request to the tokenizer process. Its fields have been checked."""
        switches = json.loads(chat.chat_template_kwargs) if chat.chat_template_kwargs else {}
        return cls(
            switches,
            chat.reasoning_effort,
            chat.has_optional_switches,
            chat.continue_final_message,
            not chat.skip_generation_prompt,
        )


class Renderer:
    """Renders with a model's chat template, or with the one that it may have for tools.

    Args:
        max_rendered_bytes: a longer prompt is an error.
    """

    def __init__(self, vocab: Vocab, max_rendered_bytes: int) -> None:
        self._tokens = vocab.template_tokens
        self._max_rendered_bytes = max_rendered_bytes
        self._control_spellings = vocab.control_spellings
        self._user_spellings = vocab.user_spellings
        plain, of_tools = vocab.chat_template, vocab.tool_template
        self._plain = None if plain is None and of_tools is None else self._parsed(plain or of_tools or "")
        self._of_tools = self._parsed(of_tools) if of_tools else self._plain
        self._marker_secret = secrets.token_hex(8)

    def render(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        tools: Sequence[inference_pb2.Tool],
        asked: Asked,
    ) -> Rendered:
        """The prompt for a conversation.

        Raises:
            TokenizerFaultError: no template, a bad one, one that refuses the messages, or one that cannot do
                what is asked.
        """
        template = self._usable(self._of_tools if tools else self._plain)
        if tools and not template.support.is_usable:
            why = "the model's chat template shows no tools, or spells calls in a way that is not known here"
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_NO_TOOLS, why)
        return template.render(messages, tools, asked, self._marker_secret)

    def _parsed(self, source: str) -> TemplateRenderer | str:
        """The template, or why it cannot be used."""
        try:
            template = ChatTemplate(source, tokens=self._tokens, max_rendered_bytes=self._max_rendered_bytes)
        except TemplateError as error:
            return str(error)
        return TemplateRenderer(template, self._control_spellings, self._user_spellings)

    def _usable(self, template: TemplateRenderer | str | None) -> TemplateRenderer:
        if isinstance(template, str):
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TEMPLATE, template)
        if template is None:
            raise TokenizerFaultError(
                tokenizer_pb2.TOKENIZER_FAULT_NO_TEMPLATE, "the model has no chat template"
            )
        return template


class TemplateRenderer:
    """One template, with what has been found out about it.

    Args:
        controls: spellings of control tokens.
        others: spellings of tokens that are read in any text. Those of the template's structure are kept
            out of messages too.
    """

    def __init__(self, template: ChatTemplate, controls: frozenset[str], others: frozenset[str]) -> None:
        self._template = template
        self.reads = Capabilities(template)
        self._control_spellings = controls
        self._other_spellings = others

    @cached_property
    def _controls(self) -> ControlTexts:
        structure = ""
        if self._other_spellings:
            structure = "\n".join([self.reads.structure, THINK, END_THINK, *_texts_of(self.support.syntax)])
        others = {each for each in self._other_spellings if _is_marker(each) and each in structure}
        return ControlTexts(self._control_spellings | others, mark=secrets.token_hex(8))

    @cached_property
    def support(self) -> ToolSupport:
        """Find out which tools it takes, and how its model calls them."""
        return tool_support(self._template.trial)

    def render(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        tools: Sequence[inference_pb2.Tool],
        asked: Asked,
        marker_secret: str,
    ) -> Rendered:
        """The prompt for a conversation; raises as `Renderer.render`.

        Args:
            marker_secret: of `ImageMarkers`.
        """
        media = ImageMarkers(marker_secret)
        said = template_messages(
            messages, self._controls, looked_for=self._template.looked_for, image=media.next
        )
        try:
            text, is_thought = self._text(said, self._controls.marked(template_tools(tools)), asked)
        except TemplateRefusedError as error:
            why = self._controls.unmarked(str(error))
            message = f"the model's chat template refused the messages: {why}"
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_REFUSED, message) from None
        except TemplateError as error:
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TEMPLATE, str(error)) from None
        except SwitchError as error:
            fault = tokenizer_pb2.TOKENIZER_FAULT_NO_SWITCH
            raise TokenizerFaultError(fault, str(error), error.field) from None
        parts = media.cut(self._controls.parts(text))
        if parts is None:
            message = "the model's chat template leaves images out, or does not keep them in order"
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_NO_IMAGES, message)
        syntax = self.support.syntax
        opened = generation_pb2.REASONING_FORMAT_OPEN
        reasoning = opened if is_thought else reasoning_of(syntax, text)
        return Rendered(parts, reasoning, syntax, prefix_of(syntax, text))

    def _text(self, said: list[Message], tools: list[Json], asked: Asked) -> tuple[str, bool]:
        """The prompt, and whether it ends within a thought."""
        given = self._controls.marked(asked.switches)
        switches = switches_of(self._template, self.reads, given, asked.effort, may_lack=asked.may_lack)
        if not asked.continues:
            return self._rendered(said, tools, switches, asked.begins_answer), False
        text = said[-1].texts[-1]
        is_thought = not text and bool(said[-1].thought)
        whole = said[-1].thought if is_thought else text
        begun = (
            replace(said[-1], thought=whole + _END)
            if is_thought
            else replace(said[-1], texts=(*said[-1].texts[:-1], whole + _END))
        )
        rendered = self._rendered([*said[:-1], begun], tools, switches, False)
        place = rendered.rfind(_END.strip())
        if place < 0:
            if is_thought:
                why = "continue_final_message: the model's chat template does not show the thought"
                raise SwitchError("continue_final_message", why)
            # The template shows no messages of the assistant as they are: the answer begins with the text.
            return self._rendered(said[:-1], tools, switches, True) + whole, False
        is_kept = rendered.startswith(_END, place)
        return rendered[:place] if is_kept else rendered[:place].rstrip(), is_thought

    def _rendered(self, said: list[Message], tools: list[Json], switches: Json, begins_answer: bool) -> str:
        if not self.reads.shows_tools and (tools or any(each.calls for each in said)):
            said, tools = with_generic_tools(said, tools, self.reads), []
        messages = as_read(said, self.reads)

        def render(tools: list[Json]) -> str:
            return self._template.render(
                messages, tools, switches=switches, add_generation_prompt=begins_answer
            )

        try:
            return render(tools)
        except TemplateError:
            if not tools:
                raise
            return render(described(tools))


def plain(parts: Sequence[inference_pb2.ContentPart]) -> Rendered:
    """A prompt that is given in parts. No template renders it."""
    numbers = count()
    told = [part.text if part.HasField("text") else next(numbers) for part in parts]
    syntax = generation_pb2.AnswerSyntax()
    return Rendered(told, generation_pb2.REASONING_FORMAT_UNSPECIFIED, syntax, "")


def _texts_of(syntax: generation_pb2.AnswerSyntax) -> list[str]:
    """List what the model writes around thoughts, content and calls."""
    calls, channels = syntax.calls, syntax.channels
    return [
        *(syntax.thought.begin, syntax.thought.end, syntax.content_begin, syntax.content_end),
        *(calls.begin, calls.separator, calls.call, calls.parameter, calls.end),
        *(*channels.begins, channels.header_end, *channels.ends),
    ]


def _is_marker(spelling: str) -> bool:
    """Return whether a token may be a part of a prompt's structure: blanks and words are not."""
    return not spelling.isspace() and not spelling.isalnum()
