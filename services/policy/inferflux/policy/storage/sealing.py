"""Encryption with a passphrase: scrypt derives a key, AES-256-GCM encrypts and shows every change. No I/O.

    scrypt:<N>:8:1:<salt>:<key id>

is the header that says how a key was derived. The salt is 16 bytes and the key id 8, both in hex. The key id
tells a wrong passphrase from damaged data.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

COST = 1 << 16
"""scrypt's N: 64 MiB and some tenths of a second for each guess."""

NONCE_BYTES = 12

PASSPHRASE_RULE = "A passphrase has 16 to 256 printable characters of ASCII, no blank and no comma"  # noqa: S105

_BLOCK, _LANES = 8, 1
_KEY_BYTES, _KEY_ID_BYTES, _SALT_BYTES = 32, 8, 16
_MIN_COST, _MAX_COST = 1 << 14, 1 << 18
_HEADER = re.compile(r"scrypt:(\d{5,6}):8:1:([0-9a-f]{32}):([0-9a-f]{16})")
_PASSPHRASE = re.compile(r"[!-+\--~]{16,256}")


class WrongPassphrase(Exception):
    """None of the passphrases is the one that it was encrypted with."""


class Damaged(Exception):
    """It was not encrypted so: it was cut short, changed, or taken from elsewhere."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Encrypts and decrypts with one key.

    Attributes:
        header: with which `Keyring.unlock` finds the key again.
        is_current: whether the key is of the passphrase that is to be used from now on.
    """

    header: str
    key: bytes
    is_current: bool

    def __repr__(self) -> str:
        return f"Seal({self.header!r})"

    def encrypt(self, text: bytes, *, name: bytes) -> bytes:
        """The nonce and what was encrypted.

        Args:
            name: of the place that it is for: it cannot be decrypted as that of another place.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, text, name)

    def decrypt(self, data: bytes, *, name: bytes) -> bytes:
        """Raises:
        Damaged: it is not what was encrypted with this key for this place.
        """
        try:
            return AESGCM(self.key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name)
        except (InvalidTag, ValueError):
            raise Damaged("it was cut short or changed") from None


class Keyring:
    """Passphrases: the first encrypts, each decrypts.

    Args:
        cost: scrypt's N for new keys.
    """

    def __init__(self, passphrases: Sequence[str], *, cost: int = COST) -> None:
        self._passphrases = tuple(passphrases)
        self._cost = cost
        self._known: dict[str, Seal] = {}

    def __repr__(self) -> str:
        return "Keyring(...)"

    def fresh(self) -> Seal:
        """A seal with a new salt. Takes some tenths of a second."""
        salt = secrets.token_bytes(_SALT_BYTES)
        key, key_id = _derived(self._passphrases[0], salt, self._cost)
        header = f"scrypt:{self._cost}:{_BLOCK}:{_LANES}:{salt.hex()}:{key_id}"
        return self._known.setdefault(header, Seal(header, key, is_current=True))

    def unlock(self, header: str) -> Seal:
        """The seal of a header. Takes some tenths of a second for each passphrase, the first time.

        Raises:
            WrongPassphrase: no passphrase fits.
            Damaged: it is no header.
        """
        if header in self._known:
            return self._known[header]
        match = _HEADER.fullmatch(header)
        if match is None or not _MIN_COST <= (cost := int(match[1])) <= _MAX_COST or cost & (cost - 1):
            raise Damaged("it does not say how it was encrypted")
        for passphrase in self._passphrases:
            key, key_id = _derived(passphrase, bytes.fromhex(match[2]), cost)
            if key_id == match[3]:
                is_current = passphrase == self._passphrases[0]
                return self._known.setdefault(header, Seal(header, key, is_current=is_current))
        raise WrongPassphrase(f"it was encrypted with another passphrase (key id {match[3]})")


def parse_passphrases(text: str) -> tuple[str, ...]:
    """The passphrases of a setting, comma-separated; none if it is empty.

    Raises:
        ValueError: there is one that cannot be used.
    """
    passphrases = tuple(part.strip() for part in text.split(",") if part.strip())
    if any(_PASSPHRASE.fullmatch(each) is None for each in passphrases):
        raise ValueError(PASSPHRASE_RULE)
    return passphrases


def _derived(passphrase: str, salt: bytes, cost: int) -> tuple[bytes, str]:
    """The key of a passphrase, and its id."""
    made = hashlib.scrypt(
        passphrase.encode(),
        salt=salt,
        n=cost,
        r=_BLOCK,
        p=_LANES,
        maxmem=256 * cost * _BLOCK,
        dklen=_KEY_BYTES + _KEY_ID_BYTES,
    )
    return made[:_KEY_BYTES], made[_KEY_BYTES:].hex()
