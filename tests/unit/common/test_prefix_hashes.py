"""Names of prefixes, against the plainest way to make them."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.prefixes.hashes import HASH_BYTES, PrefixHasher, packed

SALT = bytes(range(32))
TOKENS = st.lists(st.integers(0, 3), max_size=40)


def hasher(salt: bytes = SALT, *, model: str = "digest", block: int = 4) -> PrefixHasher:
    return PrefixHasher(salt, model_digest=model, block_tokens=block)


def shared_tokens(one: list[int], other: list[int]) -> int:
    """How many tokens two prompts have in common from the first on."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


@given(TOKENS, TOKENS, st.integers(1, 7))
def test_two_prompts_have_the_hashes_of_the_whole_blocks_they_share(
    one: list[int], other: list[int], block: int
) -> None:
    hashes = hasher(block=block)
    left, right = hashes.of(packed(one), "acme"), hashes.of(packed(other), "acme")
    shared = shared_tokens(one, other) // block
    assert left[:shared] == right[:shared]
    assert not set(left[shared:]) & set(right[shared:])
    assert len(left) == len(one) // block


@given(TOKENS)
def test_the_hashes_of_a_prompt_are_those_of_its_prefixes(tokens: list[int]) -> None:
    hashes = hasher().of(packed(tokens), "acme")
    for blocks in range(len(hashes)):
        assert hasher().of(packed(tokens[: 4 * blocks]), "acme") == hashes[:blocks]
    assert all(len(each) == HASH_BYTES for each in hashes)


def test_a_block_that_comes_again_has_another_hash() -> None:
    hashes = hasher().of(packed([7] * 400), "acme")
    assert Counter(hashes).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    "other",
    [
        hasher(bytes(32)).of(packed(range(8)), "acme"),
        hasher(model="another").of(packed(range(8)), "acme"),
        hasher(block=8).of(packed(range(8)), "acme"),
        hasher().of(packed(range(8)), "globex"),
        PrefixHasher(SALT, model_digest="digest", block_tokens=4, adapters=["a"]).of(
            packed(range(8)), "acme"
        ),
    ],
    ids=["salt", "model", "block size", "scope", "adapter"],
)
def test_nothing_is_shared_across(other: list[bytes]) -> None:
    assert not set(hasher().of(packed(range(8)), "acme")) & set(other)


def test_names_do_not_run_into_each_other() -> None:
    """Scope, model and adapters are told apart, however they are written."""

    def of(scope: str, model: str, *adapters: str) -> bytes:
        part = PrefixHasher(SALT, model_digest=model, block_tokens=4, adapters=adapters)
        return part.of(packed(range(4)), scope)[0]

    made = [of("a", "bc"), of("ab", "c"), of("a", "b", "c"), of("a", "b", "c", ""), of("a", "b", "", "c")]
    assert len(set(made)) == len(made)


def test_hashes_stay_what_they_are() -> None:
    """Services of different versions share an index."""
    assert sys.byteorder == "little"
    assert hasher().of(packed([1, -2, 3, 4]), "acme")[0].hex() == "ed1490450893bd6f"


def test_an_id_that_is_no_int32_is_refused() -> None:
    with pytest.raises(OverflowError):
        packed([2**31])
