"""Thoughts that are limited, of the demo model: closed after their tokens, wherever the answer goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.served_engine import Served, demo_backend
from harness.worker import batch_item
from harness.worker_world import EagerBudget

from inferflux.v1 import generation_pb2, worker_pb2
from inferflux.worker.engine.native import Backend

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
