"""LangChain's client for OpenAI's API, in its own standard suite for chat models."""

from __future__ import annotations

import os

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {
            "model": os.environ["SUITE_MODEL"],
            "temperature": 0,
            "max_tokens": 600,
            "max_retries": 0,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self):
        return True

    @property
    def has_tool_choice(self):
        return True
