"""`inferctl demo`: one streamed answer from a stack that is there for it alone."""

from __future__ import annotations

import time

from rich.console import Console

from .ask.answer import Answer
from .ask.generation import Generation, user_message
from .ask.stream import stream_text
from .reach.client import Client
from .stack import Stack

QUESTION = "Tell me a short story about a fox."
_GENERATION = Generation(max_tokens=200, temperature=0.0)


async def show_answer(stack: Stack, console: Console) -> None:
    """Ask one question; print the answer as it comes, and how fast it came."""
    console.print(f"\n[bold cyan]>[/] {QUESTION}")
    answer = Answer(sent_at=time.monotonic())
    async with Client(stack.target) as client:
        chunks = client.chat([user_message(QUESTION)], model=stack.model_name, params=_GENERATION.params())
        await stream_text(chunks, answer)
    rate = f"{answer.tokens_per_s:.0f} tokens/s" if answer.tokens_per_s else "one message"
    ttft = f"{answer.ttft_s * 1000:.0f} ms" if answer.ttft_s is not None else "none came"
    console.print(
        f"\n[dim]time to first token[/] {ttft}  [dim]then[/] {rate}  [dim]for[/] {answer.tokens} tokens"
    )
