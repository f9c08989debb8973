"""The service config that the client package ships."""

from __future__ import annotations

import json

import grpc
import pytest

from inferflux.client.service_config import OWN_SERVICE_CONFIG, SERVICE_CONFIG


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
