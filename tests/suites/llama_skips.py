"""Cases of llama.cpp's server tests that fit no other server, with the reason.

Copied beside them as `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
import utils  # type: ignore[import-not-found]

_SLOTS = "slots are of the workers: no client sees them"
_OWN_METRICS = "its own metrics' names and headers"
_PROGRESS = "progress of a prompt is not told: OpenAI's streams have no such part"
_SAMPLED = "log-probabilities are those before sampling"
_ORIGINS = "which origins may call is set for a gateway, not by a request"
# It sets `enable_thinking` wherever a template reads it. A switch that is not given is undefined here, as in
# Hugging Face Transformers, so that the choice of a template's author holds: of the 25 templates of
# ../shared/data that read it, 16 render another prompt where it is true.
_ITS_DEFAULT = "thoughts are on by default, against the template's own default"
_A_CHOICE = "its test model calls no tool that it may call: ours may"
_PARTS = "two line feeds are between parts of an answer that is begun; elsewhere one, as here"
_MIXED = "token ids and texts within one prompt"
SKIPS = {
    "test_basic.py::test_server_models": "it serves one model alone",
    "test_basic.py::test_server_slots": _SLOTS,
    "test_basic.py::test_no_ui": "its option to serve no page",
    "test_chat_completion.py::test_invalid_chat_completion_req[[]messages7]": "it is served",
    "test_chat_completion.py::test_return_progress*": _PROGRESS,
    "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": _PROGRESS,
    "test_metrics.py::test_metrics_timings_on_prompt_progress": _PROGRESS,
    "test_completion.py::test_completion_parallel_slots*": _SLOTS,
    "test_completion.py::test_cancel_request": _SLOTS,
    "test_metrics.py::test_metrics_slots_idle_after_completion": _SLOTS,
    "test_completion.py::test_n_probs_post*": _SAMPLED,
    "test_embedding.py::test_embedding_mixed_input[[]-False]": "OpenAI's API refuses an empty input, too",
    "test_embedding.py::test_embedding_mixed_input[[]input3-False]": _MIXED,
    "test_embedding.py::test_embedding_mixed_input[[]input7-True]": _MIXED,
    "test_completion.py::test_completion_with_tokens_input": _MIXED,
    "test_ignore_eos.py::test_ignore_eos_*logit_bias": "how it keeps ignore_eos inside",
    "test_metrics.py::*": _OWN_METRICS,
    "test_security.py::test_access_static_assets_without_api_key": "files of its own page",
    "test_security.py::test_cors_options*": "any origin may call, without credentials: none is repeated",
    "test_security.py::test_cors_origins*": _ORIGINS,
    "test_security.py::test_local_media_file*": "no file of the server's is read",
    "test_embedding.py::test_embedding_pooling_none*": "a vector for each token",
    "test_vision_api.py::test_vision_embeddings*": "a model that both embeds and sees",
    "test_chat_completion.py::test_chat_template_assistant_prefill[[]prefill1*": _PARTS,
    "test_template.py::test_reasoning[[]deepseek-ai-DeepSeek-R1-Distill-Qwen-32B-auto*": _ITS_DEFAULT,
    "test_template.py::test_reasoning[[]Qwen-QwQ-32B-auto*": _ITS_DEFAULT,
    "test_template.py::test_reasoning[[]CohereForAI-c4ai-command-r7b-12-2024-tool_use-auto*": _ITS_DEFAULT,
    "test_tool_call.py::test_completion_without_tool_call_*-tools[147]-None-*": _A_CHOICE,
    "test_ctx_shift.py::test_ctx_shift_enabled": "no context is shifted",
    "test_ctx_shift.py::test_ctx_shift_disabled_long_prompt": "its prompt is shorter in our vocabulary",
}


# Cases that need a context of 256 tokens.
SMALL = (
    "test_ctx_shift.py::*",
    "test_*::test_context_size_exceeded*",
    "test_*::test_nocache_long_input_prompt",
)


class _Pictures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        data = Path(utils.ON_DEMAND["picture"]["path"]).read_bytes()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(autouse=True, scope="session")
def pictures() -> Iterator[None]:
    """A server from which the gateway fetches a picture, in place of the suite's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pictures) as server:
        utils.ServerProcess.pictures = f"http://127.0.0.1:{server.server_port}/"
        Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@pytest.fixture(autouse=True)
def of_the_case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A picture of the suite is one of our own, and a case has the context that it needs."""
    get = requests.get

    def get_here(url: str, **options: Any) -> requests.Response:
        if not url.startswith(utils.PICTURE):
            return get(url, **options)
        answer = requests.Response()
        answer.status_code = 200
        answer._content = Path(utils.ON_DEMAND["picture"]["path"]).read_bytes()
        return answer

    monkeypatch.setattr(requests, "get", get_here)
    name = request.node.nodeid.rpartition("/")[2]
    utils.ServerProcess.is_small = any(fnmatch(name, pattern) for pattern in SMALL)
    yield
    utils.OpenAI.model = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.rpartition("/")[2]
        for pattern, why in SKIPS.items():
            if fnmatch(name, pattern):
                item.add_marker(pytest.mark.skip(reason=why))
