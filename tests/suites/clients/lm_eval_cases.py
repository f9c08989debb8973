"""The harness that measures models: log-likelihoods of prompts, and generations."""

from __future__ import annotations

import os

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI


@pytest.fixture
def lm():
    return LocalCompletionsAPI(
        model=os.environ["SUITE_MODEL"],
        base_url=f"{os.environ['SUITE_URL']}/v1/completions",
        tokenizer_backend="remote",
        header={"Authorization": f"Bearer {os.environ['SUITE_KEY']}"},
        auth_token=os.environ["SUITE_KEY"],
        num_concurrent=1,
        max_length=1024,
    )


def _ask(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


def test_loglikelihood(lm):
    likely, unlikely = lm.loglikelihood(
        _ask("loglikelihood", ("Once upon", " a time"), ("Once upon", " zebra integral"))
    )
    assert likely[0] < 0
    assert likely[0] > unlikely[0]


def test_generate(lm):
    ask = _ask("generate_until", ("Once upon a time", {"until": ["\n"], "max_gen_toks": 8}))
    assert lm.generate_until(ask)[0]
