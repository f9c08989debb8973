"""The service config that the client package ships."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc

from inferflux.api.channel_options import CHANNEL_OPTIONS, USE_PROXY, with_proxy
from inferflux.client.following import Patience
from inferflux.client.service_config import OWN_OPTIONS, OWN_SERVICE_CONFIG, SERVICE_CONFIG
from inferflux.common.calls.grpc_options import SERVER_OPTIONS


@pytest.mark.parametrize("text", [SERVICE_CONFIG, OWN_SERVICE_CONFIG])
def test_only_what_was_not_taken_is_made_again(text: str) -> None:
    (methods,) = json.loads(text)["methodConfig"]
    assert methods["retryPolicy"]["retryableStatusCodes"] == [grpc.StatusCode.UNAVAILABLE.name]
    named = {each["method"] for each in methods["name"]}
    changes = {"LoadModel", "UnloadModel", "AddAdapter", "SetFairness", "DrainWorker", "ClearCache"}
    assert not named & changes


def test_the_clients_make_their_own_generations_again() -> None:
    def methods(text: str) -> set[str]:
        return {each["method"] for each in json.loads(text)["methodConfig"][0]["name"]}

    assert methods(SERVICE_CONFIG) - methods(OWN_SERVICE_CONFIG) == {"Chat", "Generate"}


def test_a_gateway_that_says_nothing_is_given_up_within_the_resume_window_and_allows_the_pings() -> None:
    own, theirs = dict(OWN_OPTIONS), dict(SERVER_OPTIONS)
    ping_ms, answer_ms = int(own["grpc.keepalive_time_ms"]), int(own["grpc.keepalive_timeout_ms"])
    assert ping_ms + answer_ms < Patience().window_s * 1000
    assert ping_ms > int(theirs["grpc.http2.min_ping_interval_without_data_ms"])


@pytest.mark.parametrize("name", sorted(dict((*SERVER_OPTIONS, *CHANNEL_OPTIONS, *OWN_OPTIONS))))
def test_grpc_knows_each_option(name: str) -> None:
    """It ignores those that it does not know."""
    assert name.encode() + b"\0" in Path(cygrpc.__file__).read_bytes()


def test_a_channel_rests_before_the_gateway_closes_its_connection() -> None:
    """gRPC makes a connection that was closed anew at once where addresses take turns."""
    own, theirs = dict(OWN_OPTIONS), dict(SERVER_OPTIONS)
    assert int(own["grpc.client_idle_timeout_ms"]) < int(theirs["grpc.max_connection_idle_ms"])


def test_a_proxy_is_used_only_where_the_environment_says_so() -> None:
    assert dict(CHANNEL_OPTIONS)["grpc.enable_http_proxy"] == 0
    assert dict(with_proxy(OWN_OPTIONS, {}))["grpc.enable_http_proxy"] == 0
    assert dict(with_proxy(OWN_OPTIONS, {USE_PROXY: "1"}))["grpc.enable_http_proxy"] == 1
