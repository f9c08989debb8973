"""Takes the place of `utils` in llama.cpp's server tests: their server is the stack that runs already.

Copied beside them as `utils.py`. A case whose server has a chat template, a small context, or a model of
another kind has such a model loaded for it. One with another option that a request cannot ask for is skipped,
with the option's name.
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
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Set, Tuple, Union  # noqa: UP035

import openai
import pytest
import requests

URL, KEY = os.environ["SUITE_URL"], os.environ["SUITE_KEY"]
MODELS = json.loads(os.environ["SUITE_MODELS"])
ON_DEMAND = json.loads(os.environ["SUITE_ON_DEMAND"])
TIMEOUT_S = 60
LOAD_S = 120
# A file of the suite's would be fetched; any picture does.
PICTURE = "https://huggingface.co/ggml-org/tinygemma3-GGUF"
# Its large models, and the template with which ours takes a model's place.
STAND_INS = {"bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"}
# Templates that it has by name, as its own code has them.
_NAMED = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
    "<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "<|{{ {'assistant': 'CHATBOT'}.get(m.role, m.role | upper) }}_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
}

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
    # They say which model is loaded, and with which key, or what a body says.
    *("chat_template", "chat_template_file", "api_key", "reasoning", "pooling"),
}


class ServerResponse:
    """An answer."""

    headers: Mapping[str, str]
    status_code: int
    body: Any


class ServerError(Exception):
    """A stream that was refused."""

    def __init__(self, code: int, body: Any) -> None:
        self.code, self.body = code, body


class ServerProcess:
    """The stack, as a server that a test sets up."""

    def __init__(self, kind: str = "chat") -> None:
        self.__dict__.update(kind=kind, given={}, model="")
        host, _, port = URL.rpartition("//")[2].partition(":")
        self.__dict__.update(server_host=host, server_port=int(port), process=None, api_key=None)

    def __setattr__(self, name: str, value: object) -> None:
        self.given[name] = value
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        return None

    def start(self, timeout_seconds: int = 0) -> None:
        stand_in = STAND_INS.get(self.model_hf_repo)
        fits = {"model_hf_repo", "model_hf_file", "reasoning_format"} if stand_in else set()
        needed = [name for name, value in self.given.items() if name not in _HARMLESS | fits and value]
        if needed:
            pytest.skip(f"its server has the option {needed[0]}")
        kind = self.kind
        if self.pooling not in (None, "mean"):
            kind += f"-{self.pooling}"
        if kind == "chat" and self.is_small:
            kind = "small"
        template = _template_of(self, stand_in)
        if kind not in MODELS and kind not in ON_DEMAND:
            pytest.skip(f"no model here is one for {kind}")
        if template or kind not in MODELS:
            self.__dict__["model"] = _loaded(kind, template)
        else:
            unload()
            self.__dict__["model"] = "" if kind == "chat" else MODELS[kind]
        OpenAI.model = self.model

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
            method, URL + path, headers=self._headers(headers), json=self._settled(path, data), **options
        )
        made = ServerResponse()
        made.headers, made.status_code = answer.headers, answer.status_code
        try:
            made.body = answer.json()
        except ValueError:
            made.body = answer.text
        if path.endswith("/models") and self.model and answer.ok:
            # Its server has one model.
            made.body["models"] = [one for one in made.body["models"] if one["name"] == self.model]
        if path.endswith("/chat/completions") and answer.ok and data.get("verbose", self.debug):
            # Its debugging tells the prompt, which is asked for here.
            asked = self._settled(path, data)
            rendered = requests.post(URL + "/apply-template", json=asked, headers=_BEARER, timeout=TIMEOUT_S)
            made.body["__verbose"] = rendered.json()
        print(method, path, answer.status_code, str(made.body)[:2000])
        return made

    def make_stream_request(
        self, method: str, path: str, data: Any = None, headers: Any = None, host: str | None = None
    ) -> Iterator[Any]:
        answer = requests.request(
            method,
            URL + path,
            headers=self._headers(headers),
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
        # The gateway fetches its pictures from here.
        data = json.loads(re.sub(f'{PICTURE}[^"]*', self.pictures, json.dumps(data)))
        if self.model:
            data = {**data, "model": self.model}
        if "thinking" in data and self.model_hf_repo in STAND_INS:
            # Ours would end its answer with the thought.
            data = {**data, "thinking": {**data["thinking"], "budget_tokens": 8}}
        if self.reasoning in ("on", "off"):
            data = {**data, "enable_thinking": self.reasoning == "on"}
        if path == "/completion" or self.is_small:
            own = {"seed": 42, "n_predict": 64, "ignore_eos": True, "temperature": self.temperature}
            return {name: value for name, value in own.items() if value is not None} | data
        return data

    def _headers(self, headers: dict[str, str] | None) -> dict[str, str]:
        """A case about keys has the stack's for its own; others have it always."""
        given = {name: value for name, value in (headers or {}).items() if value is not None}
        if self.api_key:
            return {name: value.replace(self.api_key, KEY) for name, value in given.items()}
        has_key = {"authorization", "x-api-key"} & {name.lower() for name in given}
        return given if has_key else given | _BEARER


_BEARER = {"Authorization": f"Bearer {KEY}"}
_FOLDER = Path(__file__).parent


def _template_of(server: ServerProcess, stand_in: str | None) -> str:
    """The file of the chat template that the server has; empty: the model's own."""
    if stand_in:
        return str(_FOLDER / f"../../../models/templates/{stand_in}.jinja")
    if server.chat_template_file:
        return str(_FOLDER / server.chat_template_file)
    if not server.chat_template:
        return ""
    file = _FOLDER / f"{zlib.crc32(server.chat_template.encode())}.jinja"
    file.write_text(_NAMED.get(server.chat_template, server.chat_template))
    return str(file)


def _loaded(kind: str, template: str) -> str:
    """The name of a model that was loaded for a case."""
    fields = ON_DEMAND[kind if kind in ON_DEMAND else "chat"]
    name = f"{kind}-{Path(template).stem}".lower() if template else kind
    unload(but=name)
    if name in loaded:
        return name
    if template:
        fields = {**fields, "chat_template_path": str(Path(template).resolve())}
    answer = _administer("LoadModel", {"name": name, **fields})
    assert answer.status_code == 200, answer.text
    loaded.add(name)
    end = time.monotonic() + LOAD_S
    while (
        requests.get(f"{URL}/v1/models/{name}", headers=_BEARER, timeout=TIMEOUT_S).json()["state"] != "ready"
    ):
        assert time.monotonic() < end, f"{name} was not loaded"
        time.sleep(0.1)
    return name


def unload(*, but: str = "") -> None:
    """The stack has its own models and this one: with its own alone, clients may leave out the model."""
    for name in sorted(loaded - {but}):
        answer = _administer("UnloadModel", {"name": name, "forget": True})
        assert answer.status_code == 200, answer.text
    loaded.intersection_update({but})


def _administer(method: str, message: dict[str, Any]) -> requests.Response:
    return requests.post(f"{URL}/v1/admin/{method}", json=message, headers=_BEARER, timeout=LOAD_S)


# Names of models that cases had loaded.
loaded: set[str] = set()


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
    """Theirs, with a key of the stack, and the model that a case had loaded, if it had one: the tests import
    it before they take all of this module's names."""

    model = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"api_key": KEY, "base_url": URL + "/v1", "max_retries": 0})

    def _prepare_options(self, options: Any) -> Any:
        if self.model and isinstance(options.json_data, dict):
            options.json_data["model"] = self.model
        return options


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
