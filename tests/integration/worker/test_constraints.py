"""Constrained answers of the demo model: valid whatever the schema, the same wherever they go on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from harness.answer_syntaxes import HERMES
from harness.schemas import BOOL, INT, SMALL, arr, obj, text
from harness.served_engine import Served, demo_backend
from harness.worker import batch_item
from harness.worker_world import EagerBudget

from inferflux.common.text.constraints.schema import read_schema
from inferflux.v1 import engine_pb2, generation_pb2, worker_pb2
from inferflux.worker.engine.constraints.constraints import Constraints
from inferflux.worker.engine.llama.native import Backend

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
RANDOM: dict[str, Any] = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SCHEMAS = {
    "person": obj(name=text(), age=SMALL),
    "list": arr(obj(a=BOOL, b={"enum": ["x", "yy", "zzz"]}), 1, 2),
    "tree": {
        "$defs": {"node": obj("v", v=SMALL, kids=arr({"$ref": "#/$defs/node"}, 0, 2))},
        "$ref": "#/$defs/node",
    },
    "pattern": obj(code={"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"}, n=INT),
}


def without_end(depth: int = 40) -> dict[str, Any]:
    """Two alternatives have the same below them. If it is always the second, an answer is checked in 2^depth
    steps."""

    def level(i: int) -> dict[str, Any]:
        return {"anyOf": [obj(a={"$ref": f"#/$defs/d{i + 1}"}, k={"const": k}) for k in (1, 2)]}

    levels = {f"d{i}": level(i) for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{depth}": {"const": 0}}}


@pytest.fixture(scope="module")
def backend() -> Backend:
    return demo_backend()


@pytest.fixture
def served(backend: Backend) -> Iterator[Served]:
    backend._main.clear()
    yield Served(backend)
    while Served.made:
        Served.made.pop().engine.close()


def constraint(**fields: Any) -> generation_pb2.StructuredConstraint:
    if "json_schema" in fields:
        fields["json_schema"] = read_schema(json.dumps(fields["json_schema"])).enforced
    return generation_pb2.StructuredConstraint(**fields)


def asked(
    name: str, wanted: generation_pb2.StructuredConstraint, *, max_tokens: int = 300, **sampling: Any
) -> worker_pb2.BatchItem:
    prompt = list(range(300, 320))
    item = batch_item(name, prompt=prompt, max_tokens=max_tokens, **({"seed": 1} | sampling))
    item.request.params.constraint.CopyFrom(wanted)
    return item


@pytest.mark.parametrize("kind", ["greedy", "random"])
def test_every_complete_answer_matches_its_schema(served: Served, kind: str) -> None:
    sampling = RANDOM if kind == "random" else {"temperature": 0.0}
    items = [
        asked(f"{name}-{seed}", constraint(json_schema=schema), seed=seed, **sampling)
        for name, schema in SCHEMAS.items()
        for seed in (1, 2)
    ]
    served.run(*items)
    complete = 0
    for item in items:
        name = item.request.request_id
        assert served.reason(name) in ("STOP", "LENGTH"), served.ends[name]
        if served.reason(name) == "STOP":
            complete += 1
            schema = SCHEMAS[name.rpartition("-")[0]]
            assert jsonschema_rs.is_valid(schema, json.loads(served.texts[name])), served.texts[name]
    assert complete >= 4


@pytest.mark.parametrize(
    ("wanted", "answers"),
    [
        (
            constraint(choice=generation_pb2.ChoiceConstraint(texts=["yes", "no", 'may"be\n'])),
            {"yes", "no", 'may"be\n'},
        ),
        (constraint(regex="[ab]{2}c"), {"aac", "abc", "bac", "bbc"}),
        (constraint(gbnf='root ::= ("x" | "y") "1"'), {"x1", "y1"}),
        (constraint(lark='start: "p" /[qr]/'), {"pq", "pr"}),
    ],
)
def test_grammars_choices_and_expressions_hold(
    served: Served, wanted: generation_pb2.StructuredConstraint, answers: set[str]
) -> None:
    served.run(*(asked(f"r{seed}", wanted, seed=seed, **RANDOM) for seed in range(6)))
    assert set(served.texts.values()) <= answers
    assert {served.reason(f"r{seed}") for seed in range(6)} == {"STOP"}


FORCED = {
    "names": constraint(json_schema=obj(a_long_first_name=BOOL, another_long_name=BOOL)),
    "choice": constraint(choice=generation_pb2.ChoiceConstraint(texts=["the first answer", "no answer"])),
    "regex": constraint(regex="[0-9]{2} and then nothing but this[a-z]{3}"),
}


@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, RANDOM | {"seed": 3}], ids=["greedy", "random"])
def test_tokens_without_a_choice_take_no_steps_of_their_own(
    served: Served, name: str, sampling: dict[str, Any]
) -> None:
    backend = served.backend
    steps: list[int] = []
    said: list[tuple[list[int], str, str]] = []
    for has_drafts in (False, True):
        backend._main.clear()
        served = Served(backend)
        served.engine._drafting._budget = EagerBudget()  # type: ignore[assignment]
        if not has_drafts:
            served.engine._drafting._most_rows = 0
        served.run(asked("a", FORCED[name], logprobs=2, **sampling))
        steps.append(served.n_steps)
        said.append((served.tokens["a"], served.texts["a"], served.reason("a")))
        timings = served.ends["a"].finished.timings
        assert timings.draft_n == 0  # the request asked for no drafts
    assert said[0] == said[1]
    assert steps[1] < steps[0]


@pytest.mark.parametrize("why_not", [None, ""], ids=["tried", "known"])
def test_looking_ahead_leaves_a_constraint_as_it_was(backend: Backend, why_not: str | None) -> None:
    """Also beyond its end, and beyond a token that cannot come."""
    constraints = Constraints(backend.vocab, why_not)
    assert constraints.why_not == ""
    one = constraints.begin(FORCED["choice"], [])
    while not one.settle(time.monotonic()):
        time.sleep(0.001)
    mask, again = (np.zeros(-(-backend.vocab.size // 32), np.int32) for _ in range(2))
    n_forced = 0
    while not one.is_over:
        assert one.fill(mask)
        forced = one.forced()
        n_forced += bool(forced)
        for token in forced:
            assert one.fill(again)
            assert np.unpackbits(again.view(np.uint8), bitorder="little").nonzero()[0].tolist() == [token]
            one.look_ahead(token)
        one.look_ahead(0)
        assert not one.fill(again)
        one.look_back()
        assert one.fill(again)
        assert (again == mask).all()
        assert not one.error
        one.accept(int(np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0][-1]))
    assert n_forced
    one.close()
    constraints.close()


def test_an_answer_that_max_tokens_cuts_says_length(served: Served) -> None:
    served.run(asked("r", constraint(json_schema=SCHEMAS["person"]), max_tokens=3))
    assert served.reason("r") == "LENGTH"
    assert len(served.tokens["r"]) == 3


@pytest.mark.parametrize("is_of_calls", [False, True])
def test_a_complete_answer_that_breaks_what_masks_do_not_hold_says_so(
    served: Served, is_of_calls: bool
) -> None:
    """Others are none the worse for it."""
    pair = arr({"const": 7}, 2, 2, uniqueItems=True)
    read = read_schema(json.dumps(obj(pair=pair)), is_arguments=is_of_calls)
    if is_of_calls:
        calls = generation_pb2.ToolCallsConstraint(syntax=HERMES, is_required=True, is_single=True)
        calls.functions.add(name="add", parameters=read.enforced, checked_parameters=read.checked)
        wanted = constraint(tool_calls=calls)
    else:
        wanted = generation_pb2.StructuredConstraint(json_schema=read.enforced, checked_schema=read.checked)
    served.run(asked("r", wanted), asked("other", constraint(json_schema=SCHEMAS["list"])))
    assert served.reason("r") == "SCHEMA_MISMATCH"
    assert "non-unique" in served.ends["r"].finished.mismatch
    assert served.ends["r"].finished.usage.completion_tokens == len(served.tokens["r"])
    assert served.reason("other") == "STOP"


def test_the_end_is_not_drawn_before_the_answer_is_complete(served: Served) -> None:
    """Its logit is raised by all that is allowed, and it is the likeliest of all tokens."""
    bias = dict.fromkeys(served.backend.vocab.eog, 100.0)
    served.run(asked("r", constraint(json_schema=SCHEMAS["person"]), temperature=0.0, logit_bias=bias))
    assert set(json.loads(served.texts["r"])) == {"name", "age"}


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0}, RANDOM])
def test_an_answer_goes_on_elsewhere_as_if_nothing_had_happened(
    served: Served, sampling: dict[str, Any]
) -> None:
    """In steps of one row, and with few cells: llama.cpp computes all of them alike."""
    wanted = constraint(json_schema=SCHEMAS["person"])
    served.run(asked("whole", wanted, **sampling))
    whole = served.tokens["whole"]
    for cut in {1, len(whole) // 2, len(whole) - 1}:
        served.backend._main.clear()
        again = Served(served.backend)
        item = asked("rest", wanted, **sampling)
        item.request.generated_token_ids.extend(whole[:cut])
        item.request.epoch = 2
        again.run(item)
        assert whole[:cut] + again.tokens["rest"] == whole
        assert again.reason("rest") == served.reason("whole")


def test_an_answer_that_was_complete_elsewhere_ends_at_once(served: Served) -> None:
    wanted = constraint(choice=generation_pb2.ChoiceConstraint(texts=["yes"]))
    served.run(asked("whole", wanted))
    item = asked("rest", wanted)
    item.request.generated_token_ids.extend(served.tokens["whole"])
    item.request.epoch = 2
    served.run(item)
    assert served.tokens["rest"] == []
    assert served.reason("rest") == "STOP"


def test_a_preempted_answer_resumes_as_if_nothing_had_happened(served: Served) -> None:
    wanted = constraint(json_schema=SCHEMAS["person"])
    served.run(asked("whole", wanted))
    served.backend._main.clear()
    again = Served(served.backend)
    again.start(asked("r", wanted))
    while len(again.tokens.get("r", ())) < 3:
        again.step()
    key = next(iter(again.engine.residents))
    again.engine.deschedule(engine_pb2.EngineDeschedule(key=key, epoch=1, run=0))
    again.engine.resume(engine_pb2.EngineResume(key=key, epoch=1, slot=2, run=1))
    while again.engine.residents:
        again.step()
    assert again.tokens["r"] == served.tokens["whole"]


def test_others_are_answered_as_without_a_constraint_beside_them(served: Served) -> None:
    """Both times in steps of two rows."""
    free = [
        batch_item(f"free{i}", prompt=[400, 401, 402], max_tokens=12, seed=i, temperature=1.0) for i in (1, 2)
    ]
    served.run(*free)
    served.backend._main.clear()
    beside = Served(served.backend)
    wanted = constraint(json_schema={"type": "array", "items": SMALL, "minItems": 30})
    beside.run(free[0], asked("held", wanted, max_tokens=40))
    assert beside.tokens["free1"] == served.tokens["free1"]


def test_logprobs_are_those_of_the_model_without_the_constraint(served: Served) -> None:
    wanted = constraint(choice=generation_pb2.ChoiceConstraint(texts=["yes"]))
    served.run(asked("r", wanted, logprobs=1, temperature=0.0))
    chunk = served.ends["r"]
    assert chunk.logprobs[0].top[0].logprob >= chunk.logprobs[0].chosen.logprob


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (constraint(lark="start: <no such token>"), "constraint"),
        (constraint(regex="("), "unclosed"),
        (generation_pb2.StructuredConstraint(json_schema='{"$ref":"#"}'), "no answer satisfies it"),
    ],
)
def test_what_cannot_be_compiled_ends_its_request_alone(
    served: Served, wanted: generation_pb2.StructuredConstraint, says: str
) -> None:
    served.run(
        asked("bad", wanted), asked("good", constraint(choice=generation_pb2.ChoiceConstraint(texts=["a"])))
    )
    assert served.ends["bad"].failed.code == 3
    assert served.ends["bad"].failed.field.startswith("params.constraint.")
    assert says in served.ends["bad"].failed.message
    assert served.texts["good"] == "a"


def test_a_grammar_that_becomes_too_much_work_fails_its_request_alone(served: Served) -> None:
    """Work is counted: here, the rules that may apply at once after the first letter."""
    rules = " | ".join(f'"{i:x}"' for i in range(22_000))
    wide = generation_pb2.StructuredConstraint(lark=f'start: "x" many\nmany: {rules}')
    served.run(asked("wide", wide), asked("good", constraint(regex="a{9}")))
    assert served.ends["wide"].failed.reason == "CONSTRAINT_FAILED"
    assert served.ends["wide"].failed.field == "params.constraint.lark"
    assert "items" in served.ends["wide"].failed.message
    assert served.texts["good"] == "a" * 9


def test_a_cancelled_request_leaves_nothing_behind_while_its_constraint_is_compiled(served: Served) -> None:
    served.start(asked("r", constraint(json_schema=SCHEMAS["tree"])))
    served.engine.cancel("t.r", is_silent=False)
    served.run(asked("after", constraint(choice=generation_pb2.ChoiceConstraint(texts=["a"]))))
    assert not served.engine._constrained._compiling
    assert served.texts["after"] == "a"


def key_of(served: Served, name: str) -> str:
    return next(s.key for s in served.engine.residents.values() if s.origin.request_id == name)


def run_until_complete(served: Served, name: str) -> None:
    """Until all of an answer is there; what becomes of its check is not looked at before the next step."""
    sequence = served.engine.residents[key_of(served, name)]
    while sequence not in served.engine._constrained._checking:
        served.step()


def test_a_check_without_end_fails_its_request_alone_and_others_go_on_meanwhile(served: Served) -> None:
    free = batch_item("free", prompt=[400, 401, 402], max_tokens=8000, temperature=1.0)
    free.request.params.ignore_eos = True
    vocab = served.backend.vocab
    no_first = {token: -100.0 for token in range(vocab.size) if b"1" in vocab.piece(token)}
    endless = asked("endless", constraint(json_schema=without_end()), max_tokens=1500, logit_bias=no_first)
    served.start(endless, free)
    run_until_complete(served, "endless")
    n_free = len(served.tokens["free"])
    while "endless" not in served.ends:
        served.step()
    assert len(served.tokens["free"]) > n_free
    failed = served.ends["endless"].failed
    assert (failed.reason, failed.code) == ("CONSTRAINT_FAILED", 3)
    assert failed.field == "params.constraint.json_schema"
    assert "checking the answer took longer than 1 s" in failed.message
    assert json.loads(served.texts["endless"])
    assert [s.origin.request_id for s in served.engine.running.values()] == ["free"]
    served.engine.cancel(key_of(served, "free"), is_silent=True)
    served.run(asked("after", constraint(json_schema=SCHEMAS["list"])))
    assert served.reason("after") == "STOP"


def test_an_answer_is_cancelled_while_it_is_checked(served: Served) -> None:
    served.start(asked("r", constraint(json_schema=SCHEMAS["list"])))
    run_until_complete(served, "r")
    served.engine.cancel(key_of(served, "r"), is_silent=False)
    served.step()
    assert served.reason("r") == "CANCELLED"
    assert served.ends["r"].offset == len(served.tokens["r"])
    assert not served.engine.running
    served.run(asked("after", constraint(json_schema=SCHEMAS["list"])))
    assert served.reason("after") == "STOP"


def test_an_answer_ends_that_lost_its_slot_while_it_was_checked(served: Served) -> None:
    served.start(asked("r", constraint(json_schema=SCHEMAS["list"])))
    run_until_complete(served, "r")
    served.engine.deschedule(engine_pb2.EngineDeschedule(key=key_of(served, "r"), epoch=1, run=0))
    assert not served.engine.running
    while served.engine.residents:
        assert served.engine.idle_s() is not None
        served.step()
    assert served.reason("r") == "STOP"
    assert jsonschema_rs.is_valid(SCHEMAS["list"], json.loads(served.texts["r"]))


def test_another_process_checks_once_one_is_gone(served: Served) -> None:
    served.run(asked("before", constraint(json_schema=SCHEMAS["list"])))
    checks = served.engine._constrained._constraints._checks  # type: ignore[union-attr]
    process = checks._process
    assert process is not None
    process.kill()
    process.wait()
    served.run(asked("after", constraint(json_schema=SCHEMAS["list"])))
    assert served.reason("after") == "STOP"


def test_an_answer_with_calls_that_was_stopped_elsewhere_ends_at_once(served: Served) -> None:
    calls = generation_pb2.ToolCallsConstraint(syntax=HERMES)
    calls.functions.add(name="add", parameters='{"type":"object"}')
    item = asked("r", constraint(tool_calls=calls))
    item.request.params.stop.append("END")
    item.request.generated_token_ids.extend(
        served.backend.vocab.tokenize(b"it is 19 END", add_special=False, parse_special=False)
    )
    item.request.epoch = 2
    served.run(item)
    assert served.tokens["r"] == []
    assert served.reason("r") == "STOP"
