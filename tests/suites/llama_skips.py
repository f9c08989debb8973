"""Cases of llama.cpp's server tests that fit no other server, with the reason.

Copied beside them as `conftest.py`.
"""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

_SLOTS = "slots are of the workers: no client sees them"
_OWN_METRICS = "its own metrics' names and headers"
_PROGRESS = "progress of a prompt is not told: OpenAI's streams have no such part"
_SAMPLED = "log-probabilities are those before sampling"
_CONTEXT = "it was started with a context of 256 or 512 tokens"
_MIXED = "token ids and texts within one prompt"
SKIPS = {
    "test_basic.py::test_server_models": "it serves one model alone",
    "test_basic.py::test_server_slots": _SLOTS,
    "test_basic.py::test_no_ui": "its option to serve no page",
    "test_chat_completion.py::test_invalid_chat_completion_req[[]messages7]": "it is served",
    "test_chat_completion.py::test_context_size_exceeded*": _CONTEXT,
    "test_completion.py::test_nocache_long_input_prompt": _CONTEXT,
    "test_chat_completion.py::test_return_progress*": _PROGRESS,
    "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": _PROGRESS,
    "test_metrics.py::test_metrics_timings_on_prompt_progress": _PROGRESS,
    "test_chat_completion.py::test_verbose_debug": "__verbose is its debugging",
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
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.rpartition("/")[2]
        for pattern, why in SKIPS.items():
            if fnmatch(name, pattern):
                item.add_marker(pytest.mark.skip(reason=why))
