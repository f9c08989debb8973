"""What the users of NATS may do, held against who does it in the code."""

from __future__ import annotations

import re

import pytest

from inferflux.common.contract import subjects
from inferflux.common.contract.subjects import matches
from inferflux.common.servers import nats_users
from inferflux.common.servers.nats_users import NatsUser

SERVICES = [nats_users.gateway(), nats_users.scheduler(), nats_users.worker()]


def allows(patterns: tuple[str, ...], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


@pytest.mark.parametrize("user", [*SERVICES, nats_users.observer("acme")], ids=lambda user: user.name)
def test_a_user_reads_no_inbox_but_its_own(user: NatsUser) -> None:
    others = {"_INBOX", *(subjects.inbox_prefix_of(other.name) for other in SERVICES)}
    for prefix in others - {subjects.inbox_prefix_of(user.name)}:
        assert not allows(user.subscribe, f"{prefix}.x.1")
    assert allows(user.subscribe, f"{subjects.inbox_prefix_of(user.name)}.x.1")
    assert not any(name.startswith("_INBOX") for name in user.publish)


def test_a_worker_of_one_name_is_kept_from_what_is_anothers() -> None:
    one, other = nats_users.worker("one"), "other"
    for of in (subjects.worker_batch, subjects.worker_probe, subjects.worker_command):
        assert allows(one.subscribe, of("one"))
        assert not allows(one.subscribe, of(other))
    assert not allows(one.publish, subjects.worker_status(other))


@pytest.mark.parametrize("user", SERVICES, ids=lambda user: user.name)
def test_only_schedulers_change_streams(user: NatsUser) -> None:
    for stream in subjects.STREAMS:
        for what in ("CREATE", "UPDATE"):
            is_allowed = allows(user.publish, f"$JS.API.STREAM.{what}.{stream}")
            assert is_allowed is (user.name == nats_users.SCHEDULER)


def test_the_configuration_lists_every_user_and_bounds_all_but_the_operator() -> None:
    users = [*SERVICES, nats_users.observer("acme"), nats_users.operator()]
    text = nats_users.users_config(users, {user.name: f"of-{user.name}" for user in users})
    assert re.findall(r'user: "([^"]+)"', text) == [user.name for user in users]
    assert re.findall(r'password: "of-([^"]+)"', text) == [user.name for user in users]
    # Without a list of what it may publish, a user may publish everything.
    assert text.count("publish: {allow: [") == text.count("subscribe: {allow: [") == len(users) - 1


def test_an_observer_is_known_by_its_name() -> None:
    assert nats_users.tenant_of(nats_users.observer("acme").name) == "acme"
    assert [nats_users.tenant_of(user.name) for user in SERVICES] == [None, None, None]


@pytest.mark.parametrize(
    ("servers", "prefix"),
    [
        ("nats://127.0.0.1:4222", "_INBOX"),
        ("nats://gateway:p@127.0.0.1:4222", "_INBOX_gateway"),
        ("tls://worker-0:p@a:4222,tls://worker-0:p@b:4222", "_INBOX_worker-0"),
        (["nats://a:4222", "nats://tokens-acme:p@b:4222"], "_INBOX_tokens-acme"),
        ("gateway:p@a:4222", "_INBOX_gateway"),
        ("nats://a%2Eb%3E:p@a:4222", "_INBOX_a_b_"),
    ],
)
def test_the_inbox_prefix_follows_the_user_of_the_address(servers: str | list[str], prefix: str) -> None:
    assert subjects.inbox_prefix(servers) == prefix
