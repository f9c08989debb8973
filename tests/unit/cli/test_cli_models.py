"""The table of models, in narrow and wide terminals, and when a model has got where it was wanted."""

from __future__ import annotations

import pytest
from rich.console import Console

from inferflux.cli.ask.models import _is_loaded, _is_unloaded
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.model_tables import abilities, model_view, models_table
from inferflux.v1 import device_pb2, model_pb2

CARD = model_pb2.ModelCard(
    name="team/chat",
    digest="abcdef0123456789",
    context_length=131072,
    architecture="llama",
    quantization="Q4_K",
    parameters=3_120_000,
    size_bytes=3_500_000,
    vocabulary_size=2048,
)
PLACE = model_pb2.ModelPlace(host_id="worker-0", needs_bytes=512 << 20)
READY = model_pb2.Model(
    card=CARD,
    workers=2,
    state=model_pb2.MODEL_STATE_READY,
    aliases=["chat"],
    is_default=True,
    is_pinned=True,
    places=[PLACE],
)
FAILED = model_pb2.Model(
    card=model_pb2.ModelCard(name="big [bold]"),
    state=model_pb2.MODEL_STATE_FAILED,
    reason="/m/big.gguf: [cut] off",
    places=[PLACE],
)


def shown(width: int, *models: model_pb2.Model) -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(models_table(models))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 140])
def test_what_people_look_for_is_never_cut_off(width: int) -> None:
    lines = shown(width, READY, FAILED)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for word in ("team/chat", "chat", "(default)", "(pinned)", "ready", "failed", "[cut]", "off"):
        assert word in words, (word, lines)


def test_a_model_is_one_line_for_programs() -> None:
    console = Console(width=10_000, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(models_table([READY, FAILED], is_flat=True))
    _, ready, failed = capture.get().splitlines()
    assert ready.startswith("team/chat chat (default) (pinned)")
    assert failed.split()[:4] == ["big", "[bold]", "failed", "/m/big.gguf:"]


def test_a_wide_terminal_shows_a_model_in_full() -> None:
    text = " ".join(shown(140, READY))
    for part in ("llama Q4_K", "3.12 M", "3.34 MiB", "131,072", "512 MiB", "abcdef01"):
        assert part in text, (part, text)
    assert "big [bold]" in " ".join(shown(140, FAILED))


def on_hosts(**states: str) -> model_pb2.Model:
    """A model in a state on each host, the reason of a failure being the host's id."""
    best = model_pb2.MODEL_STATE_READY if "READY" in states.values() else model_pb2.MODEL_STATE_REGISTERED
    model = model_pb2.Model(card=CARD, state=best)
    for since, (host_id, state) in enumerate(states.items()):
        known = model_pb2.ModelState.Value(f"MODEL_STATE_{state}")
        model.places.add(host_id=host_id, state=known, since_unix_ms=since, reason=f"of {host_id}")
    return model


def test_a_load_has_failed_where_another_host_knows_the_model_as_well() -> None:
    assert _is_loaded(on_hosts(g="FAILED", h="READY"))
    assert not _is_loaded(on_hosts(g="FAILED", h="LOADING"))
    with pytest.raises(CommandError, match="of h"):
        _is_loaded(on_hosts(f="FAILED", g="REGISTERED", h="FAILED"))
    with pytest.raises(CommandError, match="unloaded meanwhile"):
        _is_loaded(on_hosts(g="REGISTERED", h="UNLOADING"))


def test_a_model_is_unloaded_when_the_hosts_that_are_meant_have_not_loaded_it() -> None:
    for state, is_unloaded in (
        ("REGISTERED", True),
        ("FAILED", True),
        ("UNLOADING", False),
        ("LOADING", False),
        ("READY", False),
    ):
        everywhere, on_one = on_hosts(g="REGISTERED", h=state), on_hosts(g="READY", h=state)
        assert _is_unloaded(everywhere, "", everywhere) is is_unloaded
        assert _is_unloaded(on_one, "h", on_one) is is_unloaded


def test_a_model_that_a_request_has_had_loaded_again_was_unloaded() -> None:
    asked = on_hosts(g="UNLOADING")
    for state, is_unloaded in (("LOADING", True), ("READY", True), ("UNLOADING", False)):
        later = on_hosts(g=state)
        later.places[0].since_unix_ms += 1
        assert _is_unloaded(later, "", asked) is is_unloaded


def test_one_model_is_shown_with_what_it_can_do_and_where_its_file_is() -> None:
    model = model_pb2.Model()
    model.CopyFrom(READY)
    model.card.MergeFrom(
        model_pb2.ModelCard(
            has_chat_template=True,
            can_call_tools=True,
            can_speculate=True,
            takes_images=True,
            expert_ranks=[
                device_pb2.ExpertPlacement(device="CPU", first_layer=0, last_layer=3),
                device_pb2.ExpertPlacement(device="RPC0", endpoint="gpu:1", first_layer=4, last_layer=9),
            ],
            paths=[
                model_pb2.EnginePath(name="flash_attention", is_on=True),
                model_pb2.EnginePath(name="prefill_context", reason="no [memory]"),
            ],
        )
    )
    model.places[0].path = "/models/[chat].gguf"
    model.places[0].mmproj_path = "/models/[eyes].gguf"
    console = Console(width=100, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(model_view(model))
    said = capture.get()
    assert "flash attention" in said
    assert "CPU: layers 0-3" in said
    assert "RPC0 (gpu:1): layers 4-9" in said
    assert "prefill context: no [memory]" in said
    assert "chat, tools, images, speculation" in said
    assert "/models/[chat].gguf" in said
    assert "/models/[eyes].gguf" in said


@pytest.mark.parametrize(
    ("role", "words"),
    [(model_pb2.MODEL_ROLE_EMBEDDING, ["embed"]), (model_pb2.MODEL_ROLE_RERANK, ["rerank"])],
)
def test_a_model_that_does_not_generate_can_do_one_thing(
    role: model_pb2.ModelRole.ValueType, words: list[str]
) -> None:
    assert abilities(model_pb2.ModelCard(role=role, has_chat_template=True)) == words
