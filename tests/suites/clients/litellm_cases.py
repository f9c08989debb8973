"""LiteLLM, as a client of OpenAI's and of Anthropic's API."""

from __future__ import annotations

import os

import litellm
import pytest

MODEL, URL, KEY = (os.environ[name] for name in ("SUITE_MODEL", "SUITE_URL", "SUITE_KEY"))
ASK = [{"role": "user", "content": "What is 12 + 7?"}]
OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY}
HOSTED = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
OLLAMA = {"model": f"ollama_chat/{MODEL}", "api_base": URL, "api_key": KEY}


@pytest.mark.parametrize(
    "way", [OPENAI, ANTHROPIC, HOSTED, OLLAMA], ids=["openai", "anthropic", "vllm", "ollama"]
)
def test_whole_and_stream(way):
    assert litellm.completion(messages=ASK, max_tokens=20, **way).choices[0].message.content
    parts = list(litellm.completion(messages=ASK, max_tokens=20, stream=True, **way))
    assert "".join(part.choices[0].delta.content or "" for part in parts)


def test_a_context_error_has_its_own_class():
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "a b " * 60_000}], **OPENAI)
