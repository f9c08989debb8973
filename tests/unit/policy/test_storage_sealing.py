"""Encryption with a passphrase, and rows as INI text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.policy.storage.ini import from_ini, to_ini
from inferflux.policy.storage.sealing import Damaged, Keyring, WrongPassphrase, parse_passphrases
from inferflux.policy.storage.table import Row

FAST = 1 << 14
ONE, OTHER = "the-first-passphrase", "the-other-passphrase"

texts = st.text(max_size=20)
values = st.dictionaries(
    st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    st.one_of(texts, st.integers(), st.lists(texts, max_size=3)),
)
rows = st.dictionaries(
    st.builds(Row, st.sampled_from(("key", "role", "limit", "guardrails", "mark")), texts),
    values.map(json.dumps),
)


@given(st.integers(0, 1 << 52), rows)
def test_rows_come_back_from_ini_as_they_were(revision: int, given_rows: dict[Row, str]) -> None:
    text = to_ini(revision, given_rows)
    assert text.isascii()
    read_revision, read = from_ini(text)
    assert read_revision == revision
    assert {row: json.loads(v) for row, v in read.items()} == {
        row: json.loads(v) for row, v in given_rows.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[policy]\n",
        "[policy]\nrevision = x\n",
        "[policy]\nrevision = 1\n[key x]\n",
        '[policy]\nrevision = 1\n[key "a"]\nb = {\n',
    ],
)
def test_what_is_no_such_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        from_ini(text)


def test_what_was_encrypted_is_decrypted_for_its_place_alone() -> None:
    seal = Keyring([ONE], cost=FAST).fresh()
    data = seal.encrypt(b"a secret", name=b"here")
    assert b"a secret" not in data
    assert seal.decrypt(data, name=b"here") == b"a secret"
    assert seal.encrypt(b"a secret", name=b"here") != data
    damaged = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    cut = [data[:i] for i in range(len(data))]
    for other in [*damaged, *cut, data + b"x"]:
        with pytest.raises(Damaged):
            seal.decrypt(other, name=b"here")
    with pytest.raises(Damaged):
        seal.decrypt(data, name=b"there")


def test_the_first_passphrase_encrypts_and_each_decrypts() -> None:
    old = Keyring([ONE], cost=FAST).fresh()
    data = old.encrypt(b"x", name=b"")
    both = Keyring([OTHER, ONE], cost=FAST)
    found = both.unlock(old.header)
    assert not found.is_current
    assert found.decrypt(data, name=b"") == b"x"
    new = both.fresh()
    assert new.is_current
    assert Keyring([OTHER]).unlock(new.header).is_current
    with pytest.raises(WrongPassphrase, match="key id"):
        Keyring([ONE]).unlock(new.header)


def test_two_seals_of_one_passphrase_differ() -> None:
    keyring = Keyring([ONE], cost=FAST)
    assert keyring.fresh().key != keyring.fresh().key


@pytest.mark.parametrize("cost", ["0", "1", "8192", "16385", "1048576", "999999999"])
def test_a_header_cannot_ask_for_any_work(cost: str) -> None:
    with pytest.raises(Damaged):
        Keyring([ONE]).unlock(f"scrypt:{cost}:8:1:{'0' * 32}:{'0' * 16}")


def test_neither_a_seal_nor_a_keyring_shows_its_secret() -> None:
    keyring = Keyring([ONE], cost=FAST)
    shown = f"{keyring!r} {keyring.fresh()!r}"
    assert ONE not in shown
    assert "key=" not in shown


@pytest.mark.parametrize("text", ["short", "with a blank in between", "x" * 257, f"{ONE},short", "ü" * 16])
def test_a_passphrase_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="16 to 256"):
        parse_passphrases(text)


def test_passphrases_are_separated_by_commas() -> None:
    assert parse_passphrases(f" {ONE}, {OTHER} ,") == (ONE, OTHER)
    assert parse_passphrases("") == ()
