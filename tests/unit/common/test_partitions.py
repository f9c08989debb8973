"""Which partition has which model, and what partitions are called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.partitions import SHARDS, WHOLE, Partition, divide, indexes_of, parse

COUNTS = st.integers(1, SHARDS)


@given(st.text(max_size=40), COUNTS)
def test_each_model_is_in_one_partition_and_its_jobs_are_on_a_subject_of_it(model: str, count: int) -> None:
    (own,) = [partition for partition in divide(count) if partition.has(model)]
    subject = subjects.jobs(model).split(".")
    assert subject[-2] in {str(shard) for shard in own.shards}
    if count > 1:
        assert ".".join([*subject[:-1], "*"]) in subjects.jobs_of(own)


@given(st.lists(st.text(max_size=8), max_size=4), st.integers(2, SHARDS))
def test_models_are_in_the_partitions_that_have_them(models: list[str], count: int) -> None:
    having = {each.index for each in divide(count) if any(each.has(model) for model in models)}
    assert indexes_of(models, count) == having
    assert indexes_of(models, 1) == {0}  # also where none is named: it has all


@given(COUNTS)
def test_partitions_divide_the_shards(count: int) -> None:
    shards = [shard for partition in divide(count) for shard in partition.shards]
    assert sorted(shards) == list(range(SHARDS))


@given(COUNTS)
def test_a_partition_is_known_by_its_name(count: int) -> None:
    assert [parse(partition.name) for partition in divide(count)] == divide(count)
    assert len({partition.name for partition in divide(count)}) == count
    assert all(subjects.is_safe_token(partition.name) for partition in divide(count))


def test_the_whole_has_all_models_on_any_subject() -> None:
    assert parse("") == parse("all") == WHOLE == Partition(0, 1)
    assert WHOLE.has("any")
    assert subjects.jobs_of(WHOLE) == []


@pytest.mark.parametrize(
    "name", ["0-of-1", "2-of-2", "0-of-65", "-1-of-2", "00-of-2", "0-of-2x", "x", "0-of-99"]
)
def test_a_name_of_no_partition_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(name, "here")
    assert caught.value.field == "here"
