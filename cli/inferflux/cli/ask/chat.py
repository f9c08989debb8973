"""`inferctl chat`: one question, or a conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console
from rich.markup import escape

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import on_ctrl_c
from inferflux.cli.reach.errors import in_words
from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import inference_pb2

from .answer import Answer
from .generation import Generation, assistant_message, system_message, tool_message, user_message
from .stream import show, stream_text

HELP = """\
  /reset          forget the conversation
  /system TEXT    set the system message and forget the conversation; without TEXT, remove it
  /stats          show or hide how fast each answer came
  /exit           leave (as does Ctrl-D)
  Ctrl-C          cancel the answer"""


@dataclass(slots=True)
class Conversation:
    """Everything said so far: the model sees all of it every time."""

    system: str = ""
    turns: list[inference_pb2.ChatMessage] = field(default_factory=list)

    def ask(self, turns: Sequence[inference_pb2.ChatMessage]) -> list[inference_pb2.ChatMessage]:
        """The messages to send for a new question and what followed it. It is remembered once answered."""
        first = [system_message(self.system)] if self.system else []
        return [*first, *self.turns, *turns]

    def remember(self, turns: Sequence[inference_pb2.ChatMessage]) -> None:
        self.turns += turns

    def reset(self) -> None:
        self.turns.clear()


async def one_shot(
    client: Client,
    text: str,
    *,
    model: str,
    system: str,
    generation: Generation,
    request_id: str,
    has_stats: bool,
    is_json: bool,
) -> None:
    """Ask once and print the answer."""
    model = model or await client.only_model()
    answer = Answer(
        sent_at=time.monotonic(),
        request_id=request_id,
        asks_for_drafts=generation.asks_for_drafts,
        max_tokens=generation.max_tokens or 0,
    )
    chunks = client.chat(
        Conversation(system).ask([user_message(text)]),
        model=model,
        params=generation.params(),
        priority=generation.priority,
        request_id=request_id,
        resume_window_s=generation.resume_window_s,
        skip_answer_cache=generation.skips_answer_cache,
        tools=generation.tools,
        on_delta=answer.on_delta,
        on_resumed=answer.on_resumed,
    )
    await show(chunks, answer, has_stats=has_stats, is_json=is_json)


class ChatSession:
    """A conversation at the terminal."""

    def __init__(
        self,
        client: Client,
        *,
        model: str,
        system: str,
        generation: Generation,
        has_stats: bool,
        history: Path,
    ) -> None:
        self._client = client
        self._model = model
        self._generation = generation
        self._has_stats = has_stats
        self._conversation = Conversation(system)
        self._console = Console(highlight=False)
        self._prompt: PromptSession[str] = PromptSession(history=_history(history))

    async def run(self) -> None:
        """Run the conversation until Ctrl-D or /exit."""
        self._model = self._model or await self._client.only_model()
        self._console.print(f"[bold]{escape(self._model)}[/] [dim]· /help · Ctrl-D leaves[/]")
        while True:
            try:
                text = (await self._prompt.prompt_async(HTML("<ansicyan><b>&gt; </b></ansicyan>"))).strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text in ("/exit", "/quit"):
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                await self._answer(text)

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name == "/reset":
            self._conversation.reset()
            self._say("forgotten")
        elif name == "/system":
            self._conversation.reset()
            self._conversation.system = argument.strip()
            self._say("system message set" if argument.strip() else "no system message")
        elif name == "/stats":
            self._has_stats = not self._has_stats
            self._say("stats are shown" if self._has_stats else "stats are hidden")
        else:
            self._say(HELP if name == "/help" else f"there is no {name}\n{HELP}")

    async def _answer(self, text: str) -> None:
        """Answer a question. The user says what the tools gave that the model calls."""
        turns = [user_message(text)]
        while True:
            answer = await self._stream(turns)
            if answer is None:
                return
            turns.append(assistant_message(answer.text, answer.calls))
            if not answer.calls:
                break
            for call in answer.calls:
                result = await self._result_of(call)
                if result is None:
                    self._say("the question is forgotten")
                    return
                turns.append(result)
        self._conversation.remember(turns)

    async def _stream(self, turns: Sequence[inference_pb2.ChatMessage]) -> Answer | None:
        """Stream one answer; Ctrl-C cancels it, an error is shown, and the conversation goes on.

        Returns None after an error.
        """
        answer = Answer(
            sent_at=time.monotonic(),
            asks_for_drafts=self._generation.asks_for_drafts,
            max_tokens=self._generation.max_tokens or 0,
        )
        chunks = self._client.chat(
            self._conversation.ask(turns),
            model=self._model,
            params=self._generation.params(),
            priority=self._generation.priority,
            resume_window_s=self._generation.resume_window_s,
            skip_answer_cache=self._generation.skips_answer_cache,
            tools=self._generation.tools,
            on_delta=answer.on_delta,
            on_resumed=answer.on_resumed,
        )
        task = asyncio.create_task(stream_text(chunks, answer))
        with on_ctrl_c(task.cancel):
            try:
                await task
            except asyncio.CancelledError:
                self._say("cancelled")
                answer.calls.clear()
            except InferFluxError as error:
                self._console.print(f"[red]{escape(in_words(error))}[/]")
                return None
        if answer.cut:
            self._say(answer.cut)
        if self._has_stats:
            self._say(answer.summary())
        return answer

    async def _result_of(self, call: inference_pb2.ToolCall) -> inference_pb2.ChatMessage | None:
        """Ask the user for the result of a tool call; None if the user interrupts."""
        label = HTML("<ansiyellow>result of {}&gt; </ansiyellow>").format(call.name)
        try:
            return tool_message(call, (await self._prompt.prompt_async(label)).strip())
        except (KeyboardInterrupt, EOFError):
            return None

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{escape(text)}[/]")


def _history(path: Path) -> History:
    """History of typed lines: from a file, or in memory where the file cannot be made."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
