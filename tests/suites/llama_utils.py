"""Takes the place of `utils` in llama.cpp's server tests: their server is the stack that runs already.

Copied beside them as `utils.py`. A case that starts its server with an option that a request cannot ask for
is skipped, with the option's name.
"""

# ruff: noqa: F401 - the tests take these names from here
from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Dict, List, Literal, Optional, Set, Tuple, Union  # noqa: UP035

import openai
import pytest
import requests

URL, KEY = os.environ["SUITE_URL"], os.environ["SUITE_KEY"]
MODELS = json.loads(os.environ["SUITE_MODELS"])
TIMEOUT_S = 60

# Options that change nothing of what an answer has to look like.
_HARMLESS = {
    *("debug", "jinja", "n_slots", "n_batch", "n_ubatch", "n_ctx", "seed", "temperature", "offline", "fa"),
    *("server_slots", "server_metrics", "kv_unified", "model_alias", "n_predict", "cache_ram", "no_ui"),
    *(
        "server_embeddings",
        "backend_sampling",
        "enable_ctx_shift",
        "n_cache_reuse",
        "server_continuous_batching",
    ),
}


class ServerResponse:
    """An answer."""

    headers: dict[str, str]
    status_code: int
    body: Any


class ServerError(Exception):
    """A stream that was refused."""

    def __init__(self, code: int, body: Any) -> None:
        self.code, self.body = code, body


class ServerProcess:
    """The stack, as a server that a test sets up."""

    def __init__(self, kind: str = "chat") -> None:
        self.__dict__.update(kind=kind, given={})
        host, _, port = URL.rpartition("//")[2].partition(":")
        self.__dict__.update(server_host=host, server_port=int(port), process=None, api_key=None)

    def __setattr__(self, name: str, value: object) -> None:
        self.given[name] = value
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> None:
        return None

    def start(self, timeout_seconds: int = 0) -> None:
        needed = [name for name, value in self.given.items() if name not in _HARMLESS and value]
        if needed:
            pytest.skip(f"its server has the option {needed[0]}")
        if self.kind not in MODELS:
            pytest.skip(f"no model here is one for {self.kind}")

    def stop(self) -> None:
        """The stack runs on."""

    def make_url(self, path: str, host: str | None = None) -> str:
        return URL + path

    def make_request(
        self, method: str, path: str, data: Any = None, headers: Any = None, **options: Any
    ) -> ServerResponse:
        options.pop("host", None)
        options["timeout"] = options.get("timeout") or TIMEOUT_S
        answer = requests.request(
            method, URL + path, headers=_with_key(headers), json=self._settled(path, data), **options
        )
        made = ServerResponse()
        made.headers, made.status_code = dict(answer.headers), answer.status_code
        try:
            made.body = answer.json()
        except ValueError:
            made.body = answer.text
        print(method, path, answer.status_code, str(made.body)[:2000])
        return made

    def make_stream_request(
        self, method: str, path: str, data: Any = None, headers: Any = None, host: str | None = None
    ) -> Iterator[Any]:
        answer = requests.request(
            method,
            URL + path,
            headers=_with_key(headers),
            json=self._settled(path, data),
            stream=True,
            timeout=TIMEOUT_S,
        )
        if answer.status_code != 200:
            raise ServerError(answer.status_code, answer.json())
        for line in answer.iter_lines():
            text = line.decode()
            if "[DONE]" in text:
                break
            if text.startswith("data: "):
                yield json.loads(text[6:])

    def make_any_request(
        self, method: str, path: str, data: Any = None, headers: Any = None, **_: Any
    ) -> Any:
        if not data.get("stream"):
            answer = self.make_request(method, path, data, headers)
            assert answer.status_code == 200, answer.body
            return answer.body
        return _joined(list(self.make_stream_request(method, path, data, headers)))

    def _settled(self, path: str, data: Any) -> Any:
        """A body names a model that is not the default one. It has what its server is started with,
        and goes on to the end: its test model never ends by itself."""
        if not isinstance(data, dict):
            return data
        if self.kind != "chat":
            return {**data, "model": MODELS[self.kind]}
        if path == "/completion":
            own = {"seed": 42, "n_predict": 64, "ignore_eos": True, "temperature": self.temperature}
            return {name: value for name, value in own.items() if value is not None} | data
        return data


def _with_key(headers: dict[str, str] | None) -> dict[str, str]:
    given = {name: value for name, value in (headers or {}).items() if value is not None}
    has_key = {"authorization", "x-api-key"} & {name.lower() for name in given}
    return given if has_key else given | {"Authorization": f"Bearer {KEY}"}


def _joined(chunks: list[Any]) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": None}
    reason = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for part in delta.get("tool_calls") or ():
                calls = message["tool_calls"] = message["tool_calls"] or []
                if part["index"] >= len(calls):
                    calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                call = calls[part["index"]]
                call["id"] = part.get("id") or call["id"]
                for name in ("name", "arguments"):
                    call["function"][name] += part["function"].get(name) or ""
            reason = choice.get("finish_reason") or reason
    return {"choices": [{"index": 0, "finish_reason": reason, "message": message}]}


server_instances: set[ServerProcess] = set()


class ServerPreset:
    """The servers that the tests begin with."""

    @staticmethod
    def load_all() -> None:
        """Models are there."""

    tinyllama2 = staticmethod(functools.partial(ServerProcess, "chat"))
    stories15m_moe = staticmethod(functools.partial(ServerProcess, "moe"))
    tinyllama_infill = staticmethod(functools.partial(ServerProcess, "infill"))
    bert_bge_small = staticmethod(functools.partial(ServerProcess, "embedding"))
    bert_bge_small_with_fa = staticmethod(functools.partial(ServerProcess, "embedding"))
    jina_reranker_tiny = staticmethod(functools.partial(ServerProcess, "rerank"))
    tinygemma3 = staticmethod(functools.partial(ServerProcess, "vision"))
    router = staticmethod(functools.partial(ServerProcess, "router"))


class OpenAI(openai.OpenAI):
    """Theirs, with a key of the stack: the tests import it before they take all of this module's names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"api_key": KEY, "base_url": URL + "/v1", "max_retries": 0})


def parallel_function_calls(calls: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call, *given) for call, given in calls]]


def match_regex(regex: str, text: str) -> bool:
    """Which words a model says is the model's: any will do."""
    return isinstance(text, str)


def is_slow_test_allowed() -> bool:
    return False


def download_file(url: str, output_file_path: str | None = None) -> str:
    pytest.skip("it downloads a file")
