"""Models whose memory is not a cell for each token, with llama.cpp itself: a sliding window, a recurrent
state, and both a state and cells. What is reused changes no answer.

Answers are compared on one thread, with less than 64 tokens in a step: llama.cpp computes each row of such
steps alike, however many there are.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from harness.model_kinds import WINDOW, hybrid_model, recurrent_model, sliding_window_model
from harness.serving import Served, load
from harness.worker import WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus
from inferflux.common.prefixes.hashes import PrefixHasher, packed
from inferflux.v1 import scheduler_pb2, worker_pb2
from inferflux.worker.engine.kv.prefix_sharing import Sharing
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.model.cached_prefixes import CachedPrefixes

pytestmark = pytest.mark.long

KINDS = {
    "window": (sliding_window_model, Sharing.WINDOW),
    "recurrent": (recurrent_model, Sharing.CHECKPOINTS),
    "hybrid": (hybrid_model, Sharing.CHECKPOINTS),
}
BATCH_TOKENS = 48
ANSWER = 20
# Tokens of a block of the prefix index.
BLOCK = 4
# Logits that differ by less than this part of their spread tie.
TIE = 0.005
each_kind = pytest.mark.parametrize("kind", KINDS)
each_with_states = pytest.mark.parametrize("kind", ["recurrent", "hybrid"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    for name, (make, _) in KINDS.items():
        make().write(folder / f"{name}.gguf")
    return folder


class Backends:
    """Each model with each size of cache, loaded once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019 - it lives as long as the tests
    def of(self, kind: str, cells: int, sequences: int) -> Backend:
        path = self._folder / f"{kind}.gguf"
        return load(path, kv_cells=cells, sequences=sequences, batch_tokens=BATCH_TOKENS, prefill_cells=0)


@pytest.fixture(scope="module")
def backends(models: Path) -> Backends:
    return Backends(models)


def serve(
    backends: Backends,
    kind: str,
    *,
    cells: int = 2048,
    sequences: int = 24,
    has_prefix_cache: bool = True,
    host_bytes: int = 1 << 26,
) -> Served:
    backend = backends.of(kind, cells, sequences)
    backend._main.clear()
    return Served(backend, has_prefix_cache=has_prefix_cache, host_bytes=host_bytes)


def prompt(draw: np.random.Generator, n: int) -> list[int]:
    return [int(token) for token in draw.integers(0, 250, n)]


def ask(name: str, ids: list[int], n: int = ANSWER) -> worker_pb2.BatchItem:
    return batch_item(name, prompt=ids, max_tokens=n)


def check_answers(backends: Backends, kind: str, served: Served, *items: worker_pb2.BatchItem) -> None:
    """Each token is the best after those before it, as computed afresh. Other cells change last bits of what
    the cache keeps in half precision: so the best may be any of those that tie."""
    context = backends.of(kind, 1536, 24)._main
    for item in items:
        context.clear()
        ids = np.array(item.request.prompt_token_ids, np.int32)
        for start in range(0, ids.shape[0], BATCH_TOKENS):
            part = ids[start : start + BATCH_TOKENS]
            logits = context.decode_tokens(part, seq_id=0, position=start)
        for i, token in enumerate(served.tokens.get(item.request.request_id, [])):
            assert logits[0].max() - logits[0][token] < TIE * logits[0].std(), (item.request.request_id, i)
            chosen = np.array([token], np.int32)
            logits = context.decode_tokens(chosen, seq_id=0, position=ids.shape[0] + i)
    context.clear()


def without(backends: Backends, kind: str, *items: worker_pb2.BatchItem) -> dict[str, list[int]]:
    """What requests are answered one after the other without a cache."""
    alone = serve(backends, kind, cells=1536, has_prefix_cache=False, host_bytes=0)
    for item in items:
        alone.run(item)
    assert alone.hits == alone.restored == 0
    return alone.tokens


@each_kind
def test_the_engine_finds_out_what_the_memory_shares(backends: Backends, kind: str) -> None:
    backend = backends.of(kind, 2048, 24)
    assert backend.sharing.kind is KINDS[kind][1]
    assert backend.sharing.window == (WINDOW if kind == "window" else 0)
    assert backend.sharing.reason
    assert not backend.sharing_error
    assert not backend.cuts_states
    assert load().sharing.kind is Sharing.FULL
    assert load().cuts_states


@each_kind
def test_deterministic_requests_are_refused_by_their_field_and_the_next_is_served(
    backends: Backends, kind: str
) -> None:
    served = serve(backends, kind)
    same = ask("same", list(range(100, 120)))
    same.request.params.deterministic = True
    served.run(same)
    failed = served.chunks[-1].failed
    assert (failed.reason, failed.field) == ("NOT_DETERMINISTIC", "params.deterministic")
    assert backends.of(kind, 2048, 24).sharing.reason in failed.message
    served.run(ask("next", list(range(100, 120))))
    assert len(served.tokens["next"]) == ANSWER


@each_kind
def test_several_at_once_are_answered_as_each_alone(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(1)
    prompts = {f"r{i}": prompt(draw, n) for i, n in enumerate((3, 30, 47, 90))}
    expected = without(backends, kind, *(ask(name, ids) for name, ids in prompts.items()))
    assert len({tuple(tokens) for tokens in expected.values()}) == len(prompts)
    served = serve(backends, kind)
    served.run(*(ask(name, ids) for name, ids in prompts.items()))
    assert served.tokens == expected
    served.check_cells()


@each_kind
def test_a_conversation_goes_on_where_it_was(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(2)
    served = serve(backends, kind)
    turns: list[worker_pb2.BatchItem] = []
    ids: list[int] = []
    new_tokens = 0
    for turn in range(4):
        added = prompt(draw, 30)
        ids = ids + added
        new_tokens += len(added)
        turns.append(ask(f"t{turn}", ids))
        served.run(turns[-1])
        ids = ids + served.tokens[f"t{turn}"]
    assert served.cached == {"t0": 0, "t1": 49, "t2": 99, "t3": 149}, "all but the last token of each answer"
    assert served.prefilled == new_tokens + 3
    assert served.tokens == without(backends, kind, *turns)
    served.check_cells()


@each_kind
def test_a_conversation_whose_answer_is_not_said_again_goes_on_from_its_prompt(
    backends: Backends, kind: str
) -> None:
    draw = np.random.default_rng(3)
    served = serve(backends, kind)
    first = prompt(draw, 40)
    second = first + prompt(draw, 30)
    for name, ids in (("a", first), ("b", second)):
        served.run(ask(name, ids))
    assert served.cached == {"a": 0, "b": 40}
    assert served.tokens == without(backends, kind, ask("a", first), ask("b", second))


@each_with_states
def test_a_beginning_that_many_have_is_kept_from_the_second_time_on(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(4)
    served = serve(backends, kind)
    beginning = prompt(draw, 60)
    asked = [ask(f"r{i}", [*beginning, i, *prompt(draw, 20)]) for i in range(4)]
    for item in asked:
        served.run(item)
    assert served.cached == {"r0": 0, "r1": 0, "r2": 60, "r3": 60}
    assert served.tokens == without(backends, kind, *asked)
    served.check_cells()


def told(served: Served, ids: list[int]) -> int:
    """With how many tokens a request could begin here, as schedulers learn it from the prefix index."""
    hasher = PrefixHasher(bytes(32), model_digest="digest", block_tokens=BLOCK)
    prefixes = CachedPrefixes(hasher.of)
    for each in served.reported.values():
        prefixes.report(each, 1)
    usable = {block.hash: block.usable for change in prefixes.take_changes() for block in change.added}
    known = [usable[each] for each in hasher.of(packed(ids), "tenant/t") if each in usable]
    return known[-1] * BLOCK if known else 0


@each_kind
def test_the_index_says_what_a_request_finds_and_no_more(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(4)
    served = serve(backends, kind)
    beginning = prompt(draw, 62)
    found = []
    for i in range(4):
        ids = [*beginning, i, *prompt(draw, 20)]
        found.append(told(served, ids))
        served.run(ask(f"r{i}", ids))
        assert 0 <= served.cached[f"r{i}"] - found[i] < BLOCK
    assert found == ([0, 60, 60, 60] if kind == "window" else [0, 0, 60, 60])


@each_with_states
def test_a_prompt_asked_again_is_kept_from_the_second_time_on(backends: Backends, kind: str) -> None:
    served = serve(backends, kind)
    ids = prompt(np.random.default_rng(5), 50)
    for name in ("a", "b", "c"):
        served.run(ask(name, ids))
    assert served.cached == {"a": 0, "b": 0, "c": 49}
    assert served.tokens["a"] == served.tokens["b"] == served.tokens["c"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_window_is_shared_in_part_while_its_cells_are_there_and_never_beyond(
    backends: Backends, is_gone: bool
) -> None:
    draw = np.random.default_rng(6)
    whole = prompt(draw, 150)
    branch = whole[:100] + prompt(draw, 10)
    expected = without(backends, "window", ask("branch", branch))
    served = serve(backends, "window", cells=512)
    served.engine.start(ask("whole", whole, 200))
    while not served.tokens.get("whole"):
        served.step()
    (holder,) = [s.seq_id for s in served.engine.residents.values()]
    n_others = 0
    while is_gone and served.backend.positions(holder)[0] <= 100 - WINDOW + 1:
        serve_beside(served, ask(f"other{n_others}", prompt(draw, 100), 1))
        n_others += 1
        assert "whole" not in served.cached, "it ended before new tokens took the cells of its old ones"
    serve_beside(served, ask("branch", branch))
    assert served.cached["branch"] == (0 if is_gone else 100)
    assert served.tokens["branch"] == expected["branch"]
    serve_beside(served, ask("again", branch))
    assert served.cached["again"] == len(branch) - 1
    assert served.tokens["again"] == expected["branch"]
    served.check_cells()


def serve_beside(served: Served, item: worker_pb2.BatchItem) -> None:
    """Serve a request while another one runs in slot 0."""
    item.slot = 1
    served.engine.start(item)
    while item.request.request_id not in served.cached:
        served.step()


@each_kind
def test_preempted_requests_go_on_from_host_memory(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(7)
    asked = [ask(f"r{i}", prompt(draw, 50), 60) for i in range(4)]
    served = serve(backends, kind, cells=256, sequences=4)
    served.run(*asked)
    assert served.swap_ins > 0, "nothing was preempted"
    assert [len(tokens) for tokens in served.tokens.values()] == [60] * 4
    served.check_cells()
    check_answers(backends, kind, served, *asked)


@each_kind
def test_a_request_replayed_after_a_crash_goes_on_as_it_would_have(backends: Backends, kind: str) -> None:
    ids = prompt(np.random.default_rng(8), 40)
    expected = without(backends, kind, ask("r", ids, 40))["r"]
    served = serve(backends, kind)
    again = batch_item("r", prompt=ids, generated=expected[:17], max_tokens=40, epoch=2)
    served.run(again)
    assert served.tokens["r"] == expected[17:]


@each_kind
def test_a_request_is_stopped_and_cancelled(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(9)
    served = serve(backends, kind)
    long, stopped = prompt(draw, 120), prompt(draw, 30)
    expected = without(backends, kind, ask("stopped", stopped), ask("long", long))
    item = ask("stopped", stopped)
    item.request.params.stop_token_ids.append(expected["stopped"][9])
    served.run(ask("long", long), item, cancelled="t.long")
    n = expected["stopped"].index(expected["stopped"][9])
    assert served.tokens["stopped"][:n] == expected["stopped"][:n]
    assert len(served.tokens["stopped"]) <= n + 1
    served.check_cells()
    served.run(ask("long", long))
    assert served.tokens["long"] == expected["long"]
    assert served.cached["long"] > 0, "what was computed before the cancel is kept"


@each_kind
def test_what_leaves_the_kv_cache_serves_from_host_memory(backends: Backends, kind: str) -> None:
    draw = np.random.default_rng(10)
    first, other = prompt(draw, 90), prompt(draw, 150)
    second = first + prompt(draw, 20)
    expected = without(backends, kind, ask("a", first), ask("b", second))
    served = serve(backends, kind, cells=256, sequences=3)
    served.run(ask("a", first))
    for i in range(3):
        served.run(ask(f"other{i}", [i, *other]))
    served.run(ask("b", second))
    assert served.cached["b"] == 90 or kind == "window"
    assert served.restored == (kind != "window")
    assert served.tokens["b"] == expected["b"]
    ids = second + served.tokens["b"] + prompt(draw, 5)
    served.run(ask("c", ids))
    assert served.cached["c"] == len(second) + ANSWER - 1
    served.check_cells()


@each_kind
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_reused_the_answer_is_the_same(backends: Backends, kind: str, seed: int) -> None:
    """Conversations that go on, branch and are asked again, some at once, some cancelled, in a tiny cache."""
    draw = np.random.default_rng(100 + seed)
    served = serve(backends, kind, cells=512, sequences=7, host_bytes=1 << 20 if seed else 0)
    talks = [prompt(draw, 40)]
    asked: list[worker_pb2.BatchItem] = []
    cancelled: set[str] = set()
    for batch in range(25):
        items = []
        for slot in range(int(draw.integers(1, 4))):
            talk = talks[int(draw.integers(len(talks)))]
            kept = talk[: int(draw.integers(1, len(talk) + 1))] if draw.random() < 0.5 else talk
            ids = kept + prompt(draw, int(draw.integers(0, 30)))
            items.append(ask(f"r{batch}-{slot}", ids[-400:], int(draw.integers(1, 30))))
        name = items[0].request.request_id if draw.random() < 0.2 else ""
        cancelled.add(name)
        served.run(*items, cancelled=f"t.{name}")
        asked += items
        talks += [
            [*item.request.prompt_token_ids, *served.tokens.get(item.request.request_id, [])][:150]
            for item in items
        ]
        served.check_cells()
    assert served.hits > 5
    assert served.engine._memory.ledger.held == 0
    check_answers(backends, kind, served, *asked)
    for item in asked:
        name = item.request.request_id
        assert len(served.tokens.get(name, [])) == item.request.params.max_tokens or name in cancelled


@each_kind
def test_without_a_prefix_cache_every_prompt_is_computed(backends: Backends, kind: str) -> None:
    served = serve(backends, kind, has_prefix_cache=False)
    ids = prompt(np.random.default_rng(11), 60)
    for name in ("a", "b"):
        served.run(ask(name, ids))
    assert served.cached == {"a": 0, "b": 0}
    assert served.tokens["a"] == served.tokens["b"]
    assert (served.queries, served.stats.kv_cells_cached) == (0, 0)


def test_a_prefill_context_is_not_made_of_a_state(models: Path) -> None:
    backend = load(models / "recurrent.gguf", kv_cells=512)
    assert backend.prefill_cells == 0
    assert "a part of a sequence cannot be copied" in backend.prefill_context_error


@pytest.mark.parametrize(
    ("kind", "sharing"),
    [
        ("window", scheduler_pb2.PREFIX_SHARING_WINDOW),
        ("recurrent", scheduler_pb2.PREFIX_SHARING_CHECKPOINTS),
    ],
)
async def test_a_worker_serves_it_says_how_it_shares_and_goes_on_after_a_crash(
    nats_url: str, models: Path, tmp_path: Path, kind: str, sharing: int
) -> None:
    bus = await Bus.connect(nats_url, name="kinds-tests")
    path = models / f"{kind}.gguf"
    variables = {"INFERFLUX_WORKER_MODEL_PATH": str(path), "INFERFLUX_WORKER_MODEL_NAME": "inferflux-demo"}
    worker = WorkerProcess(tmp_path, nats_url, bus, f"kind-{kind}", **variables)
    ids = prompt(np.random.default_rng(12), 40)
    try:
        await worker.start_ready()
        assert worker.status is not None
        assert worker.status.prefix_sharing == sharing
        assert worker.status.prefix_sharing_reason
        first = await read_answer(worker, ask("first", ids))
        worker.kill()
        worker.status = None
        await worker.start_ready()
        replayed = batch_item("first", prompt=ids, generated=first[:5], max_tokens=ANSWER, epoch=2)
        assert await read_answer(worker, replayed) == first[5:]
        assert await read_answer(worker, ask("again", ids)) == first
    finally:
        worker.kill()
        await bus.close()
    assert "not every part of a prefix is shared" in worker.log_path.read_text()


async def read_answer(worker: WorkerProcess, item: worker_pb2.BatchItem) -> list[int]:
    stream = await worker.read(item.request.request_id)
    submitted = await worker.submit(item)
    assert not submitted.refused, submitted
    tokens = token_ids(await read_to_end(stream))
    stream.close()
    return tokens
