"""Parameters of sampling by their names."""

from __future__ import annotations

import pytest
import typer

from inferflux.cli.ask.generation import Generation
from inferflux.cli.ask.sampling import sampling_of
from inferflux.v1 import generation_pb2


def test_fields_are_set_by_name() -> None:
    made = sampling_of(["top_k=3", "dry_multiplier=0.5", "seed=18446744073709551615"])
    assert (made.top_k, made.dry_multiplier, made.seed) == (3, 0.5, 2**64 - 1)
    assert not made.HasField("top_p")


def test_every_field_of_sampling_can_be_named() -> None:
    biases_and_texts = {"logit_bias": "4:-1.5,7:2", "dry_sequence_breakers": "x"}
    for field in generation_pb2.SamplingParams.DESCRIPTOR.fields:
        made = sampling_of([f"{field.name}={biases_and_texts.get(field.name, '1')}"])
        assert [one.name for one, _ in made.ListFields()] == [field.name]


def test_biases_are_of_token_ids() -> None:
    assert dict(sampling_of(["logit_bias=4:-1.5,7:2"]).logit_bias) == {4: -1.5, 7: 2.0}


def test_what_ends_an_answer_is_told() -> None:
    params = Generation(stop=["END", "\n"], stop_token_ids=[3]).params()
    assert (list(params.stop), list(params.stop_token_ids)) == (["END", "\n"], [3])


@pytest.mark.parametrize(
    ("value", "texts"), [("", []), ("\\n,:", ["\n", ":"]), ("a b,\\t", ["a b", "\t"]), ("x=y", ["x=y"])]
)
def test_breakers_are_texts_between_commas(value: str, texts: list[str]) -> None:
    made = sampling_of([f"dry_sequence_breakers={value}"])
    assert made.HasField("dry_sequence_breakers")
    assert list(made.dry_sequence_breakers.texts) == texts


@pytest.mark.parametrize(
    "given",
    ["top_k", "top_k=x", "top_j=3", "logit_bias=3", "top_k=1.5", "=1", "logit_bias=a:1", "logit_bias=3:x"],
)
def test_what_is_no_field_or_no_value_of_it_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter, match=given.partition("=")[0] or "NAME=VALUE"):
        sampling_of([given])


def test_a_flag_of_its_own_wins() -> None:
    generation = Generation(temperature=0.5, sampling=sampling_of(["temperature=1.5", "top_k=7"]))
    sampling = generation.params().sampling
    assert (sampling.temperature, sampling.top_k) == (0.5, 7)
