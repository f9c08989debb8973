"""Two requests share an answer only if nothing that decides it differs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from inferflux.gateway.answers.key import IRRELEVANT, IRRELEVANT_OF_FORMAT, is_repeatable, key_of, name_of
from inferflux.gateway.request.preparation import resolve
from inferflux.v1 import generation_pb2, scheduler_pb2

Params = generation_pb2.GenerationParams
Sampling = generation_pb2.SamplingParams
Job = scheduler_pb2.InferenceRequest

SALT = bytes(32)


def job(params: generation_pb2.GenerationParams | None = None) -> scheduler_pb2.InferenceRequest:
    return Job(
        request_id="r1",
        tenant="acme",
        model="demo",
        prompt_token_ids=[1, 2, 3],
        params=resolve(params or Params(max_tokens=7), prompt_tokens=3, context_length=100),
        attempt_id="a1",
    )


def key(request: scheduler_pb2.InferenceRequest, digest: str = "d1", *, is_seeded: bool = True) -> bytes:
    return key_of(request, model_digest=digest, is_seeded=is_seeded)


def leaves(
    descriptor: Descriptor, path: tuple[str, ...] = (), above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Every field that has a value of its own, however deep; a message within its own kind is left out."""
    for field in descriptor.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is None or field.is_repeated or is_map:
            yield *path, field.name
        elif field.message_type.full_name not in above:
            inner = (*above, field.message_type.full_name)
            yield from leaves(field.message_type, (*path, field.name), inner)


def change(message: Message, path: tuple[str, ...]) -> None:
    """Give a field another value than it has."""
    *parents, name = path
    for parent in parents:
        message = getattr(message, parent)
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value[5] = 1.5
    elif field.message_type is not None:
        value.add()
    elif field.is_repeated:
        value.append("new" if field.type == FieldDescriptor.TYPE_STRING else 9)
    elif field.type == FieldDescriptor.TYPE_BOOL:
        setattr(message, name, not value)
    elif field.type == FieldDescriptor.TYPE_STRING:
        setattr(message, name, value + "x")
    else:
        setattr(message, name, value + 1)


ALL = list(leaves(Job.DESCRIPTOR))
# What a scope holds, so that it counts although the key has no such field.
SCOPE = {("tenant",), ("cache_scope",)}
SAME = (
    {(name,) for name in IRRELEVANT} - SCOPE
    | {("params", "max_tokens"), ("params", "speculation")}
    | {("answer_format", name) for name in IRRELEVANT_OF_FORMAT}
)


def test_the_fields_that_do_not_count_are_fields() -> None:
    assert set(ALL) >= SAME | SCOPE


@pytest.mark.parametrize("path", [path for path in ALL if path not in SAME], ids=".".join)
def test_a_field_that_decides_the_answer_changes_the_key(path: tuple[str, ...]) -> None:
    other = job(Params(max_tokens=7, sampling=Sampling(seed=4)))
    first = key(other)
    change(other, path)
    assert key(other) != first
    assert name_of(key(other), SALT) != name_of(first, SALT)


@pytest.mark.parametrize("path", sorted(SAME), ids=".".join)
def test_a_field_that_does_not_decide_the_answer_leaves_the_key(path: tuple[str, ...]) -> None:
    other = job(Params(max_tokens=7, sampling=Sampling(seed=4)))
    first = key(other)
    change(other, path)
    assert key(other) == first


def test_another_model_of_the_same_name_has_another_key() -> None:
    assert key(job(), "d1") != key(job(), "d2")


def test_a_seed_that_was_drawn_does_not_count() -> None:
    greedy = Params(sampling=Sampling(temperature=0))
    first, second = job(greedy), job(greedy)
    assert first.params.sampling.seed != second.params.sampling.seed
    assert key(first, is_seeded=False) == key(second, is_seeded=False)


def test_a_bias_counts_whatever_the_order_it_was_set_in() -> None:
    there, back = Sampling(seed=1), Sampling(seed=1)
    for token in range(50):
        there.logit_bias[token] = 1.0
        back.logit_bias[49 - token] = 1.0
    assert key(job(Params(sampling=there))) == key(job(Params(sampling=back)))


def test_a_tenants_own_scope_is_not_a_shared_one_of_that_name() -> None:
    own, shared = job(), job()
    shared.tenant, shared.cache_scope = "other", "acme"
    assert key(own, is_seeded=False) != key(shared, is_seeded=False)


def test_tenants_of_one_scope_share() -> None:
    first, second = job(Params(sampling=Sampling(seed=1))), job(Params(sampling=Sampling(seed=1)))
    second.tenant = "other"
    first.cache_scope = second.cache_scope = "catalogue"
    assert key(first) == key(second)


def test_the_salt_changes_the_name() -> None:
    assert name_of(b"key", SALT) != name_of(b"key", bytes(31) + b"1")


@pytest.mark.parametrize(
    ("sampling", "is_so"),
    [
        (Sampling(), False),
        (Sampling(temperature=0.5), False),
        (Sampling(temperature=0), True),
        (Sampling(temperature=0, typical_p=0.5, dry_multiplier=1), True),
        (Sampling(temperature=0, xtc_probability=0.5), False),
        (Sampling(temperature=0, dynatemp_range=0.5), False),
        (Sampling(temperature=0, xtc_probability=0.5, seed=1), True),
        (Sampling(seed=0), True),
        (Sampling(temperature=0.5, seed=3), True),
    ],
)
def test_only_greedy_and_seeded_requests_have_one_answer(
    sampling: generation_pb2.SamplingParams, is_so: bool
) -> None:
    assert is_repeatable(Params(sampling=sampling)) is is_so
