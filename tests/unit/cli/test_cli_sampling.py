"""Parameters of sampling by their names."""

from __future__ import annotations

import pytest
import typer

from inferflux.cli.generation import Generation
from inferflux.cli.sampling import sampling_of


def test_fields_are_set_by_name() -> None:
    made = sampling_of(["top_k=3", "dry_multiplier=0.5", "seed=18446744073709551615"])
    assert (made.top_k, made.dry_multiplier, made.seed) == (3, 0.5, 2**64 - 1)
    assert not made.HasField("top_p")


@pytest.mark.parametrize(
    ("value", "texts"), [("", []), ("\\n,:", ["\n", ":"]), ("a b,\\t", ["a b", "\t"]), ("x=y", ["x=y"])]
)
def test_breakers_are_texts_between_commas(value: str, texts: list[str]) -> None:
    made = sampling_of([f"dry_sequence_breakers={value}"])
    assert made.HasField("dry_sequence_breakers")
    assert list(made.dry_sequence_breakers.texts) == texts


@pytest.mark.parametrize("given", ["top_k", "top_k=x", "top_j=3", "logit_bias=3", "top_k=1.5", "=1"])
def test_what_is_no_field_or_no_value_of_it_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter, match=given.partition("=")[0] or "NAME=VALUE"):
        sampling_of([given])


def test_a_flag_of_its_own_wins() -> None:
    generation = Generation(temperature=0.5, sampling=sampling_of(["temperature=1.5", "top_k=7"]))
    sampling = generation.params().sampling
    assert (sampling.temperature, sampling.top_k) == (0.5, 7)
