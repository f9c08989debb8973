"""When certificates are read again, and whose name a call over TLS has."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferflux.common.calls.grpc_tls import certificate_name
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.tls import Reloaded, TlsFiles


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "ca.pem"
    made.write_text("first")
    return made


def reloaded(path: Path, clock: Clock) -> Reloaded[str]:
    def read() -> str:
        if (text := path.read_text()) == "bad":
            raise ValueError("bad")
        return text

    return Reloaded(TlsFiles(ca=path, variable="INFERFLUX_TLS_CA"), read, clock=clock)


def test_a_changed_file_is_read_again_a_second_later_at_the_earliest(path: Path, clock: Clock) -> None:
    made = reloaded(path, clock)
    path.write_text("second")
    clock.now_s = 0.9
    assert made.current() == "first"
    clock.now_s = 1.0
    assert made.current() == "second"


def test_a_file_that_does_not_change_is_not_made_again(path: Path, clock: Clock) -> None:
    made = reloaded(path, clock)
    first = made.current()
    clock.now_s = 100.0
    assert made.current() is first


@pytest.mark.parametrize("damage", ["bad", None])
def test_what_cannot_be_used_changes_nothing_until_it_can(
    path: Path, clock: Clock, damage: str | None
) -> None:
    made = reloaded(path, clock)
    path.unlink()
    if damage is not None:
        path.write_text(damage)
    for clock.now_s in (1.0, 2.0):
        assert made.current() == "first"
    path.write_text("third one")
    clock.now_s = 3.0
    assert made.current() == "third one"


def test_a_link_to_another_file_is_a_change(tmp_path: Path, clock: Clock) -> None:
    """How Kubernetes renews a secret."""
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "ca.pem"
    link.symlink_to("old")
    made = reloaded(link, clock)
    other = tmp_path / "other"
    other.symlink_to("new")
    other.replace(link)
    clock.now_s = 1.0
    assert made.current() == "new"


def test_what_cannot_be_used_at_the_start_is_an_error_that_names_the_setting(
    path: Path, clock: Clock
) -> None:
    path.write_text("bad")
    with pytest.raises(InvalidArgument, match=r"INFERFLUX_TLS_CA: cannot use .*ca\.pem: bad") as refused:
        reloaded(path, clock)
    assert refused.value.field == "INFERFLUX_TLS_CA"


def test_a_name_counts_only_over_tls() -> None:
    shown = {"transport_security_type": [b"ssl"], "x509_common_name": [b"gateway"]}
    assert certificate_name(shown) == "gateway"
    assert certificate_name({"transport_security_type": [b"ssl"]}) == ""
    assert certificate_name({**shown, "transport_security_type": [b"insecure"]}) == ""
    assert certificate_name({}) == ""
