"""A stream of chunks onto the terminal."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import typer

from inferflux.cli.reach.errors import INTERRUPTED
from inferflux.v1 import tokens_pb2

from .answer import Answer
from .tools import spelled

_CANCELLED = "cancelled: the answer is not whole\n"


async def stream_text(
    chunks: AsyncGenerator[tokens_pb2.TokenChunk, None], answer: Answer, *, is_shown: bool = True
) -> None:
    """Write the text as it comes, ending the line; `answer` gathers it, whatever ends the stream."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                text = answer.take(chunk, time.monotonic())
                if is_shown and text:
                    sys.stdout.write(text)
                    sys.stdout.flush()
    finally:
        if is_shown and answer.text and not answer.text.endswith("\n"):
            sys.stdout.write("\n")
        for call in answer.calls if is_shown else ():
            sys.stdout.write(spelled(call) + "\n")
        sys.stdout.flush()


async def show(
    chunks: AsyncGenerator[tokens_pb2.TokenChunk, None], answer: Answer, *, has_stats: bool, is_json: bool
) -> None:
    """The whole answer of a one-shot command: text as it comes, or one JSON object at the end.

    Raises:
        typer.Exit: with 130, the answer was cancelled elsewhere.
    """
    try:
        await stream_text(chunks, answer, is_shown=not is_json)
    except asyncio.CancelledError:
        sys.stderr.write(_CANCELLED)
        raise
    if is_json:
        sys.stdout.write(json.dumps(answer.as_dict(), ensure_ascii=False) + "\n")
    elif answer.cut:
        sys.stderr.write(answer.cut + "\n")
    if has_stats and not is_json:
        sys.stderr.write(answer.summary() + "\n")
    if answer.is_cancelled:
        sys.stderr.write(_CANCELLED)
        raise typer.Exit(INTERRUPTED)
