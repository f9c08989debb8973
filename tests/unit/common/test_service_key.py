"""Services prove themselves with a secret that they share."""

from __future__ import annotations

import pytest

from inferflux.common.calls.calls import call_context
from inferflux.common.calls.service_key import VARIABLE, ServiceKeys, parse_service_keys
from inferflux.common.contract.errors import InvalidArgument, Unauthenticated

KEY, NEXT_KEY = "a" * 16, "b" * 40


def test_the_first_key_is_sent_and_each_is_accepted() -> None:
    keys = parse_service_keys(f"{NEXT_KEY}, {KEY}")
    assert keys == (NEXT_KEY, KEY)
    known = ServiceKeys(keys)
    known.check(KEY)
    known.check(NEXT_KEY)


@pytest.mark.parametrize("given", [KEY[:-1], KEY + "a", KEY.upper(), "ä" * 16, f"{KEY},{NEXT_KEY}"])
def test_another_key_is_refused(given: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        ServiceKeys((KEY,)).check(given)
    assert caught.value.reason == "WRONG_SERVICE_KEY"
    assert given not in caught.value.message


def test_no_key_is_refused() -> None:
    with pytest.raises(Unauthenticated) as caught:
        ServiceKeys((KEY,)).check("")
    assert caught.value.reason == "NO_SERVICE_KEY"


@pytest.mark.parametrize("key", ["", KEY, NEXT_KEY])
def test_a_certificate_proves_what_a_key_proves(key: str) -> None:
    ServiceKeys((KEY,), certificates=["gateway"]).check(key, certificate="gateway")
    ServiceKeys((), certificates=["gateway"]).check(key, certificate="gateway")


@pytest.mark.parametrize("name", ["", "client", "Gateway", "gateway.example"])
@pytest.mark.parametrize("certificates", [["gateway"], ["gateway", ""], []])
def test_a_certificate_of_another_name_proves_nothing(name: str, certificates: list[str]) -> None:
    with pytest.raises(Unauthenticated) as caught:
        ServiceKeys((KEY,), certificates=certificates).check("", certificate=name)
    assert caught.value.reason == "NO_SERVICE_KEY"
    ServiceKeys((KEY,), certificates=certificates).check(KEY, certificate=name)


def test_where_certificates_prove_it_there_may_be_no_key_but_no_bad_one() -> None:
    assert parse_service_keys("", needs_one=False) == ()
    with pytest.raises(InvalidArgument):
        parse_service_keys("short", needs_one=False)


@pytest.mark.parametrize("text", ["", " , ", "short", "a" * 257, "with blank in it!", "ä" * 16])
def test_a_setting_that_cannot_be_a_key_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_service_keys(text)
    assert caught.value.field == VARIABLE
    assert not text.strip(" ,") or text not in caught.value.message


def test_a_context_shows_no_secret() -> None:
    context = call_context(
        [("authorization", "Bearer ifx_secret"), ("x-inferflux-service-key", KEY)], remaining_s=None
    )
    assert (context.credential, context.service_key) == ("ifx_secret", KEY)
    assert "ifx_secret" not in repr(context)
    assert KEY not in repr(context)
