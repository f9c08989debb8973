"""How an adapter is named, and that what it computes has a scope of its own."""

from __future__ import annotations

import pytest

from inferflux.common.contract.callers.cache_scope import cache_scope_of, is_within, scope_of_tenant
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import adapters
from inferflux.v1 import model_pb2, scheduler_pb2

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("m:a", ("m", "a")),
        ("m", ("m", "")),
        ("m:7b:a", ("m:7b", "a")),
        (":a", (":a", "")),
        ("m:", ("m:", "")),
        ("m:a/b", ("m:a/b", "")),
        ("", ("", "")),
    ],
)
def test_a_name_says_model_and_adapter(name: str, parts: tuple[str, str]) -> None:
    assert adapters.split(name) == parts
    if parts[1]:
        assert adapters.joined(*parts) == name
    assert adapters.joined("m", "") == "m"


def test_a_card_lists_adapters_that_can_be() -> None:
    def card(name: str = "a", digest: str = A, scale: float = 1.0) -> model_pb2.AdapterCard:
        return model_pb2.AdapterCard(name=name, digest=digest, scale=scale)

    good = card()
    adapters.check_cards(model_pb2.ModelCard(adapters=[good]), "adapters")
    for bad, field in (
        ([card(name="a:b")], "adapters.name"),
        ([card(digest="x")], "adapters.digest"),
        ([card(scale=0.0)], "adapters.scale"),
        ([card(scale=float("nan"))], "adapters.scale"),
        ([good, good], "adapters.name"),
        ([good] * 65, "adapters"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            adapters.check_cards(model_pb2.ModelCard(adapters=bad), "adapters")
        assert refused.value.field == field


def test_a_job_names_an_adapter_and_its_digest_or_neither() -> None:
    adapters.check_chosen("", "")
    adapters.check_chosen("a", A)
    for name, digest in (("a", ""), ("", A), ("a b", A), ("a", A[1:])):
        with pytest.raises(InvalidArgument):
            adapters.check_chosen(name, digest)


def test_no_two_adapters_share_a_scope_and_a_tenants_scope_has_them_all() -> None:
    scopes = [
        cache_scope_of(scheduler_pb2.InferenceRequest(tenant="t", cache_scope=scope, adapter_digest=digest))
        for scope in ("", "s")
        for digest in ("", A, B)
    ]
    assert len(set(scopes)) == 6
    assert [is_within(scope, scope_of_tenant("t")) for scope in scopes] == [True] * 3 + [False] * 3
    assert all(is_within(scope, "") for scope in scopes)
    assert not is_within("tenant/tt", "tenant/t")
