"""Models as `GET /v1/models` tells them."""

from __future__ import annotations

from typing import Any

from inferflux.gateway.http.paths.models import listed_json, to_json
from inferflux.v1 import device_pb2, model_pb2


def test_a_model_says_what_it_can_do_and_where_its_file_is() -> None:
    model = model_pb2.Model(
        card=model_pb2.ModelCard(name="m", can_call_tools=True, can_constrain=True, can_speculate=False),
        state=model_pb2.MODEL_STATE_READY,
        places=[
            model_pb2.ModelPlace(
                host_id="h",
                state=model_pb2.MODEL_STATE_READY,
                path="/m.gguf",
                mmproj_path="/eyes.gguf",
                needs_bytes=7,
            )
        ],
    )
    said = to_json(model, 1)
    assert (said["can_call_tools"], said["can_constrain"], said["can_speculate"]) == (True, True, False)
    (place,) = said["places"]
    assert (place["host_id"], place["state"], place["path"]) == ("h", "ready", "/m.gguf")
    assert place["mmproj_path"] == "/eyes.gguf"


def test_a_model_says_what_it_is_there_for() -> None:
    for role, name in (
        (model_pb2.MODEL_ROLE_UNSPECIFIED, "generation"),
        (model_pb2.MODEL_ROLE_GENERATION, "generation"),
        (model_pb2.MODEL_ROLE_EMBEDDING, "embedding"),
        (model_pb2.MODEL_ROLE_RERANK, "rerank"),
    ):
        said = to_json(model_pb2.Model(card=model_pb2.ModelCard(name="m", role=role), is_pinned=True), 1)
        assert (said["role"], said["is_pinned"], said["is_default"]) == (name, True, False)


def test_a_mixture_says_where_its_experts_are() -> None:
    rank = device_pb2.ExpertPlacement(device="RPC0", endpoint="10.0.0.2:50061", first_layer=0, last_layer=11)
    said = to_json(model_pb2.Model(card=model_pb2.ModelCard(name="m", expert_ranks=[rank])), 1)
    assert said["expert_ranks"] == [
        {"device": "RPC0", "endpoint": "10.0.0.2:50061", "first_layer": 0, "last_layer": 11}
    ]


def test_whether_a_model_speculates_is_not_known_before_it_was_loaded() -> None:
    assert to_json(model_pb2.Model(card=model_pb2.ModelCard(name="m")), 1)["can_speculate"] is None


def test_clients_of_llama_cpps_server_are_told_what_a_model_takes() -> None:
    def told(**fields: Any) -> Any:
        return listed_json(model_pb2.ModelCard(name="m", **fields), "m:a")["capabilities"]

    assert listed_json(model_pb2.ModelCard(name="m", architecture="llama"), "m:a")["name"] == "m:a"
    assert told() == ["completion"]
    assert told(takes_images=True) == ["completion", "vision", "multimodal"]
    assert told(takes_audio=True, can_call_tools=True) == ["completion", "tools", "audio", "multimodal"]
    assert told(role=model_pb2.MODEL_ROLE_EMBEDDING) == ["embedding"]
