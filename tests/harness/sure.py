"""Chats of the demo model as tokens, and how sure it is of what it answers.

The number of rows in a step and the cells of a sequence change logits by up to a tenth: llama.cpp then adds
up in another order. A test that compares an answer across these needs one of which the model is sure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from harness.chat_template import render
from harness.worker import DEMO_MODEL

from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import tokens_pb2

# Of two log-probabilities, a token's and its runner-up's.
SURE = 1.0


@functools.cache
def _vocabulary() -> Vocab:
    return Vocab.load(DEMO_MODEL)


def chat_tokens(*texts: str) -> list[int]:
    """The prompt of a chat in which user and assistant take turns, the user first."""
    roles = ("user", "assistant")
    return prompt_tokens([{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)])


def answer_tokens(text: str) -> list[int]:
    """A whole answer, with the token that ends it."""
    return _vocabulary().tokenize(f"{text}<|im_end|>".encode(), add_special=False, parse_special=True)


def prompt_tokens(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
    """The prompt of messages as OpenAI's API has them."""
    return _vocabulary().tokenize(render(messages, tools).encode(), add_special=False, parse_special=True)


def check_sure(chunks: Iterable[tokens_pb2.TokenChunk]) -> None:
    """Fail unless the first choice of every token is far before the second.

    Args:
        chunks: of one greedy answer whose request had `logprobs` 2 or more.
    """
    text = ""
    for chunk in chunks:
        assert len(chunk.logprobs) == len(chunk.token_ids), "the request had no logprobs"
        for token in chunk.logprobs:
            first, second = token.top[:2]
            assert first.logprob - second.logprob > SURE, (
                f"after {text!r} the model wavers between {first.text!r} and {second.text!r}"
            )
        text += chunk.text
