"""Thoughts that are limited, of the demo model: closed after their tokens, wherever the answer goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness.served_engine import Served, demo_backend
from harness.worker import batch_item
from harness.worker_world import EagerBudget

from inferflux.v1 import generation_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend

OPEN = generation_pb2.REASONING_FORMAT_OPEN
RANDOM: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
END = "\n</think>\n\n"


@pytest.fixture(scope="module")
def backend() -> Backend:
    return demo_backend()


@pytest.fixture
def served(backend: Backend) -> Iterator[Served]:
    backend._main.clear()
    yield Served(backend)
    while Served.made:
        Served.made.pop().engine.close()


def asked(
    name: str, *, most: int | None = None, max_tokens: int = 60, **sampling: Any
) -> worker_pb2.BatchItem:
    item = batch_item(name, prompt=list(range(300, 320)), max_tokens=max_tokens, **sampling)
    item.request.answer_format.reasoning = OPEN
    item.request.params.ignore_eos = True
    if most is not None:
        item.request.params.max_reasoning_tokens = most
    return item


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("most", [0, 1, 20])
def test_a_thought_ends_after_its_tokens_and_usage_has_them(
    served: Served, most: int, sampling: dict[str, Any]
) -> None:
    served.run(asked("free", **sampling), asked("limited", most=most, **sampling))
    n_closing = len(served.backend.vocab.tokenize(END.encode(), add_special=False, parse_special=True))
    tokens, free = served.tokens["limited"], served.tokens["free"]
    n = served.ends["limited"].finished.usage.reasoning_tokens
    assert most + n_closing - 2 <= n <= most + n_closing + 3
    assert tokens[:most] == free[:most], "the limit changes nothing before it"
    thought, end, answer = served.texts["limited"].partition(END)
    assert end
    assert answer
    assert served.texts["free"].startswith(thought)
    assert len(tokens) == 60


@pytest.mark.parametrize("speculation", [generation_pb2.SPECULATION_OFF, generation_pb2.SPECULATION_NGRAM])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, RANDOM], ids=["greedy", "random"])
def test_an_answer_goes_on_the_same_from_every_token_and_with_drafts(
    served: Served, sampling: dict[str, Any], speculation: generation_pb2.Speculation.ValueType
) -> None:
    served.run(asked("whole", most=12, max_tokens=30, **sampling))
    whole = served.tokens["whole"]
    again = Served(served.backend)
    for cut in (1, 11, 12, 13, 14, 20):
        served.backend._main.clear()
        again.tokens.clear()
        again.engine._drafting._budget = EagerBudget()  # type: ignore[assignment]
        item = asked("rest", most=12, max_tokens=30, **sampling)
        item.request.generated_token_ids.extend(whole[:cut])
        item.request.params.speculation = speculation
        item.request.epoch = 2
        again.run(item)
        assert whole[:cut] + again.tokens["rest"] == whole
        assert again.ends["rest"].finished.usage == served.ends["whole"].finished.usage


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
)


def held(name: str, *, most: int | None, **sampling: Any) -> worker_pb2.BatchItem:
    """An answer that is JSON behind a thought."""
    item = asked(name, most=most, max_tokens=120, **sampling)
    item.request.params.ignore_eos = False
    constraint = item.request.params.constraint
    constraint.json_schema, constraint.reasoning = SCHEMA, OPEN
    constraint.syntax.thought.begin, constraint.syntax.thought.end = "<think>\n", END
    item.request.answer_format.syntax.CopyFrom(constraint.syntax)
    return item


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, RANDOM], ids=["greedy", "random"])
def test_a_limited_thought_is_followed_by_what_the_constraint_asks_for(
    served: Served, sampling: dict[str, Any]
) -> None:
    served.run(held("whole", most=15, **sampling))
    whole = served.tokens["whole"]
    thought, end, answer = served.texts["whole"].partition(END)
    assert served.reason("whole") == "STOP"
    assert thought
    assert end
    assert 0 <= json.loads(answer)["n"] <= 99
    again = Served(served.backend)
    for cut in (1, 15, 16, len(whole) - 1):
        served.backend._main.clear()
        again.tokens.clear()
        item = held("rest", most=15, **sampling)
        item.request.generated_token_ids.extend(whole[:cut])
        item.request.epoch = 2
        again.run(item)
        assert whole[:cut] + again.tokens["rest"] == whole


def test_a_thought_without_a_limit_is_free_and_no_answer_ends_within_it(served: Served) -> None:
    served.run(held("free", most=None, **RANDOM))
    assert END.strip() not in served.texts["free"]
    assert served.reason("free") == "LENGTH"
