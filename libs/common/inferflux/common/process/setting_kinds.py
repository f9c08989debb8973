"""Kinds of settings: what a value is checked for when a service starts."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ByteSize

from inferflux.common.contract import address, subjects

_BYTE_COUNT = re.compile(r"\d+(\.\d+)?\s*[A-Za-z]*")


def _check_subject_token(value: str) -> str:
    if not subjects.is_safe_token(value):
        raise ValueError("must be 1-64 of A-Z a-z 0-9 _ -")
    return value


SubjectToken = Annotated[str, AfterValidator(_check_subject_token)]
"""A name that can stand in a NATS subject as it is."""


def _check_optional_subject_token(value: str) -> str:
    return _check_subject_token(value) if value else value


OptionalSubjectToken = Annotated[str, AfterValidator(_check_optional_subject_token)]
"""The same, or empty for none."""


def _check_listen(value: str) -> str:
    if not address.is_address(value):
        raise ValueError("must be host:port")
    return value


def _check_optional_listen(value: str) -> str:
    return _check_listen(value) if value else value


def _check_target(value: str) -> str:
    if not address.is_address(value) or value.startswith(":") or address.split(value, "")[1] == 0:
        raise ValueError("must be host:port, and the port not 0")
    return value


def _check_targets(value: str) -> str:
    addresses = listed(value)
    if not addresses:
        raise ValueError("must be host:port, or several, comma-separated")
    for each in addresses:
        _check_target(each)
        if len(addresses) > 1 and not _is_ipv4(address.split(each, "")[0]):
            raise ValueError("several are IPv4 addresses with their ports: one name may have all of them")
    return value


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


ListenAddress = Annotated[str, AfterValidator(_check_listen)]
"""`host:port`, `[::1]:port`, or `:port` for every interface; port 0 is any free one."""
OptionalListenAddress = Annotated[str, AfterValidator(_check_optional_listen)]
"""The same, or empty for nothing that listens."""
TargetAddresses = Annotated[str, AfterValidator(_check_targets)]
"""Where servers of one kind are called: `host:port`, or IPv4 addresses with ports, comma-separated."""


def _check_byte_count(value: object) -> object:
    # Pydantic takes what begins with a number, whatever follows.
    if isinstance(value, str) and not _BYTE_COUNT.fullmatch(value.strip()):
        raise ValueError("must be a number of bytes, such as 1000000, 512MB or 2GiB")
    return value


ByteCount = Annotated[ByteSize, BeforeValidator(_check_byte_count)]
"""Bytes, with a unit or without: `1024`, `512MB`, `2GiB`."""


def _none_if_empty(value: object) -> object:
    # A path of no characters is the working directory.
    return None if value == "" else value


OptionalPath = Annotated[Path | None, BeforeValidator(_none_if_empty)]
"""A path; a variable that is empty is as good as one that is unset."""


def listed(value: str) -> list[str]:
    """The parts of a comma-separated setting."""
    return [part.strip() for part in value.split(",") if part.strip()]
