"""Which gateway a command talks to, and with which key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferflux.api.errors import InvalidArgument
from inferflux.api.tls import Tls
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.state_dir import StackState
from inferflux.cli.reach.target import Target, resolve

LOCAL = StackState(
    pid=1,
    endpoint="127.0.0.1:50051",
    api_key="local-key",
    nats_url="nats://127.0.0.1:4222",
    tokens_url="nats://127.0.0.1:4222",
    redis_url="redis://127.0.0.1:6379/0",
    model="demo",
    processes={},
    metrics={},
)
ENV = {"INFERFLUX_ENDPOINT": "env:1", "INFERFLUX_API_KEY": "env-key"}


def test_flags_come_before_the_environment() -> None:
    found = resolve(endpoint="flag:1", api_key="flag-key", env=ENV, local=lambda: LOCAL)
    assert found == Target("flag:1", "flag-key")


def test_the_environment_comes_before_the_local_stack() -> None:
    assert resolve(endpoint="", api_key="", env=ENV, local=lambda: LOCAL) == Target("env:1", "env-key")


def test_the_local_stack_is_used_when_nothing_else_is_said() -> None:
    found = resolve(endpoint="", api_key="", env={}, local=lambda: LOCAL)
    assert found == Target("127.0.0.1:50051", "local-key")


def test_another_key_can_be_used_on_the_local_stack() -> None:
    found = resolve(endpoint="", api_key="", env={"INFERFLUX_API_KEY": "mine"}, local=lambda: LOCAL)
    assert found == Target("127.0.0.1:50051", "mine")


def test_a_url_is_no_endpoint() -> None:
    with pytest.raises(CommandError, match="http://far:8080 is a URL: name the gateway's gRPC port"):
        resolve(endpoint="http://far:8080", api_key="mine", env={}, local=lambda: LOCAL)


def test_the_local_key_is_used_for_its_own_endpoint_given_by_flag() -> None:
    found = resolve(endpoint="127.0.0.1:50051", api_key="", env={}, local=lambda: LOCAL)
    assert found.api_key == "local-key"


@pytest.mark.parametrize("endpoint", ["a:1,b:2", "b:2", " b:2 ,a:1"])
def test_the_local_key_is_used_for_each_gateway_of_the_local_stack(endpoint: str) -> None:
    local = replace(LOCAL, endpoint="a:1,b:2")
    assert resolve(endpoint=endpoint, api_key="", env={}, local=lambda: local).api_key == "local-key"
    with pytest.raises(CommandError, match="no API key"):
        resolve(endpoint=f"{endpoint},far:1", api_key="", env={}, local=lambda: local)


def test_the_local_key_is_never_sent_elsewhere() -> None:
    with pytest.raises(CommandError, match="no API key for far:1"):
        resolve(endpoint="far:1", api_key="", env={}, local=lambda: LOCAL)


def test_without_any_stack_the_message_says_what_to_do() -> None:
    with pytest.raises(CommandError, match=r"inferctl up.*--endpoint, INFERFLUX_ENDPOINT .*--state-dir"):
        resolve(endpoint="", api_key="", env={}, local=lambda: None)


ENCRYPTED = replace(LOCAL, tls_ca="stack.pem")


@pytest.mark.parametrize("endpoint", ["", LOCAL.endpoint])
def test_the_flag_s_ca_comes_before_that_of_the_local_stack(endpoint: str) -> None:
    env = {"INFERFLUX_TLS_CA": "env.pem"}
    own = resolve(endpoint=endpoint, api_key="", env=env, local=lambda: ENCRYPTED)
    given = resolve(endpoint=endpoint, api_key="", env=env, local=lambda: ENCRYPTED, tls_ca="flag.pem")
    assert (own.tls.ca, given.tls.ca) == ("stack.pem", "flag.pem")


@pytest.mark.parametrize("endpoint", ["", LOCAL.endpoint])
def test_no_key_goes_in_plain_text_where_the_flag_asks_for_tls(endpoint: str) -> None:
    with pytest.raises(CommandError, match="plain text: leave --tls-ca out"):
        resolve(endpoint=endpoint, api_key="", env={}, local=lambda: LOCAL, tls_ca="public")


def test_the_flag_s_ca_comes_before_that_of_the_environment() -> None:
    env = {
        **ENV,
        "INFERFLUX_TLS_CA": "env.pem",
        "INFERFLUX_TLS_CERT": "me.pem",
        "INFERFLUX_TLS_KEY": "me.key",
    }
    found = resolve(endpoint="", api_key="", env=env, local=lambda: LOCAL, tls_ca="flag.pem")
    assert found.tls == Tls("flag.pem", "me.pem", "me.key")


def test_a_ca_without_a_certificate_is_refused_by_name(tmp_path: Path) -> None:
    """Without this every call says that nothing answers."""
    file = tmp_path / "hostname"
    for holds in (b"", b"a-host\n", b"-----BEGIN CERTIFICATE-----\n"):
        file.write_bytes(holds)
        with pytest.raises(InvalidArgument, match="hostname holds no certificate"):
            Tls(file).credentials()
    with pytest.raises(InvalidArgument, match=r"cannot read .*gone: No such file"):
        Tls(tmp_path / "gone").credentials()
