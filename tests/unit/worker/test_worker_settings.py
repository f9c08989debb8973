"""Slots and the places beside them; the KV cache's size and types."""

from __future__ import annotations

import pytest

from inferflux.common.process.settings import load
from inferflux.worker.files.device_wish import DeviceWish
from inferflux.worker.files.expert_ranks import ExpertRank
from inferflux.worker.settings import WorkerSettings


def made(monkeypatch: pytest.MonkeyPatch, **variables: str) -> WorkerSettings:
    monkeypatch.setenv("INFERFLUX_WORKER_MODEL_PATH", "m.gguf")
    for name, value in variables.items():
        monkeypatch.setenv(f"INFERFLUX_WORKER_{name}", value)
    return load(WorkerSettings)


@pytest.mark.parametrize(
    ("slots", "sequences", "cache", "expected"),
    [
        ("4", "0", "false", 8),
        ("4", "0", "true", 8 + 64),
        ("100", "0", "true", 255),
        ("200", "0", "true", 256),
        ("4", "5", "true", 5),
    ],
)
def test_parked_requests_find_as_many_places_as_there_are_slots_and_cached_prefixes_some_beside_them(
    monkeypatch: pytest.MonkeyPatch, slots: str, sequences: str, cache: str, expected: int
) -> None:
    settings = made(monkeypatch, SLOTS=slots, SEQUENCES=sequences, PREFIX_CACHE=cache)
    assert settings.all_sequences == expected


def test_fewer_sequences_than_slots_stop_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        made(monkeypatch, SLOTS="4", SEQUENCES="3")
    error = capsys.readouterr().err
    assert error.startswith("INFERFLUX_WORKER_SEQUENCES: ")
    assert "INFERFLUX_WORKER_SLOTS" in error


@pytest.mark.parametrize(
    ("given", "expected"),
    [("0", 0), ("1048576", 1 << 20), ("512MB", 512_000_000), ("2GiB", 2 << 30), ("1.5 kB", 1500)],
)
def test_memory_is_given_with_a_unit_or_without(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: int
) -> None:
    settings = made(monkeypatch, KV_BYTES=given, HOST_BYTES=given, DISK_BYTES=given)
    assert (settings.kv_bytes, settings.host_bytes, settings.disk_bytes) == (expected,) * 3


def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **variables: str
) -> list[str]:
    """The lines with which these stop the start."""
    with pytest.raises(SystemExit) as stopped:
        made(monkeypatch, **variables)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("given", ["-1", "2**70", "512 chairs", "many", "9e30", "99999999TB", "1 GB 2"])
def test_memory_that_is_no_number_of_bytes_stops_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    (line,) = refusal(monkeypatch, capsys, KV_BYTES=given)
    assert line.startswith("INFERFLUX_WORKER_KV_BYTES: ")
    assert repr(given) in line


def test_a_cache_sized_in_cells_and_in_bytes_stops_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refusal(monkeypatch, capsys, KV_CELLS="4096", KV_BYTES="512MB")
    assert line.startswith("INFERFLUX_WORKER_KV_BYTES: ")
    assert "INFERFLUX_WORKER_KV_CELLS" in line
    assert made(monkeypatch, KV_CELLS="0", KV_BYTES="512MB").kv_bytes == 512_000_000


def test_types_of_keys_and_values_are_checked_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refusal(monkeypatch, capsys, KV_TYPE_K="q9_9")
    assert line.startswith("INFERFLUX_WORKER_KV_TYPE_K: ")
    assert "q8_0" in line
    monkeypatch.delenv("INFERFLUX_WORKER_KV_TYPE_K")
    settings = made(monkeypatch, KV_TYPE_K="q8_0", KV_TYPE_V="bf16")
    assert (settings.kv_type_k, settings.kv_type_v) == ("q8_0", "bf16")


def test_drafts_of_a_model_that_is_not_named_stop_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(monkeypatch, SPECULATION="ngram").draft_model is None
    assert made(monkeypatch, SPECULATION="draft", DRAFT_MODEL="d.gguf").speculation == "draft"
    monkeypatch.delenv("INFERFLUX_WORKER_DRAFT_MODEL")
    with pytest.raises(SystemExit):
        made(monkeypatch, SPECULATION="draft")
    assert "INFERFLUX_WORKER_SPECULATION" in capsys.readouterr().err


def test_an_empty_path_is_none_and_not_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = made(monkeypatch, DISK_PATH="", DRAFT_MODEL="")
    assert (settings.disk_path, settings.draft_model) == (None, None)


def test_an_empty_draft_model_cannot_draft(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refusal(monkeypatch, capsys, DRAFT_MODEL="", SPECULATION="draft")
    assert line.startswith("INFERFLUX_WORKER_SPECULATION: must not be draft")


def test_no_worker_is_called_as_a_further_model_of_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refusal(monkeypatch, capsys, ID="worker-0--1")
    assert line.startswith("INFERFLUX_WORKER_ID: ")
    assert made(monkeypatch, ID="xn--a-b1").id == "xn--a-b1"


def test_devices_are_asked_for_by_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERFLUX_CUDA_FLASH_ATTENTION", "off")
    settings = made(
        monkeypatch,
        GPU_LAYERS="12",
        SPLIT_MODE="row",
        TENSOR_SPLIT="3, 1",
        MAIN_GPU="1",
        EXPERTS_ON_CPU="-1",
        TENSOR_OVERRIDES=r"blk\.0\..*=CPU, exps=CUDA1",
        EXPERT_RANKS="a:1=0-3, CUDA1=4-7",
        RPC_SERVERS="a:1, b:2",
    )
    assert settings.device_wish == DeviceWish(
        gpu_layers=12,
        split_mode="row",
        tensor_split=(3, 1),
        main_gpu=1,
        experts_on_cpu=-1,
        tensor_overrides=((r"blk\.0\..*", "CPU"), ("exps", "CUDA1")),
        expert_ranks=(ExpertRank("a:1", (0, 3)), ExpertRank("CUDA1", (4, 7))),
        rpc_servers=("a:1", "b:2"),
        gpu_flash_attention="off",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPU_LAYERS", "-2"),
        ("SPLIT_MODE", "rows"),
        ("TENSOR_SPLIT", "3,x"),
        ("MAIN_GPU", "16"),
        ("EXPERTS_ON_CPU", "-2"),
        ("TENSOR_OVERRIDES", "blk"),
        ("EXPERT_RANKS", "CUDA0=0-3,CUDA1=3-7"),
        ("RPC_SERVERS", "host"),
    ],
)
def test_devices_that_cannot_be_stop_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    with pytest.raises(SystemExit):
        made(monkeypatch, **{name: value})
    assert f"INFERFLUX_WORKER_{name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "switch"),
    [
        *((value, "on") for value in ("on", "ON", "true", "True", "1", " on ")),
        *((value, "off") for value in ("off", "Off", "false", "FALSE", "0")),
        *((value, "auto") for value in ("auto", "AUTO")),
    ],
)
def test_flash_attention_is_switched_in_the_usual_words(
    monkeypatch: pytest.MonkeyPatch, value: str, switch: str
) -> None:
    monkeypatch.setenv("INFERFLUX_CUDA_FLASH_ATTENTION", value)
    assert made(monkeypatch).device_wish.gpu_flash_attention == switch


@pytest.mark.parametrize("value", ["maybe", "2", "-1", "truth", "none"])
def test_a_switch_that_is_none_stops_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("INFERFLUX_CUDA_FLASH_ATTENTION", value)
    with pytest.raises(SystemExit):
        made(monkeypatch)
    assert "INFERFLUX_CUDA_FLASH_ATTENTION" in capsys.readouterr().err


def test_a_worker_serves_kv_state_over_tcp_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch).kv_server == ""
    monkeypatch.setenv("INFERFLUX_ROLE", "decode")
    assert made(monkeypatch).kv_server == "127.0.0.1:0"
    monkeypatch.setenv("INFERFLUX_KV_LISTEN", "localhost:7000")
    assert made(monkeypatch).kv_server == "localhost:7000"
    monkeypatch.setenv("INFERFLUX_KV_TRANSPORT", "nats")
    assert made(monkeypatch).kv_server == ""


@pytest.mark.parametrize("given", [":7000", "0.0.0.0:7000", "kv.example.com:7000", "[::]:7000"])
def test_kv_state_is_not_served_to_a_network_in_plain_text_unless_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    monkeypatch.setenv("INFERFLUX_KV_LISTEN", given)
    with pytest.raises(SystemExit):
        made(monkeypatch)
    error = capsys.readouterr().err
    assert error.startswith("INFERFLUX_KV_LISTEN: ")
    assert "INFERFLUX_KV_INSECURE" in error
    monkeypatch.setenv("INFERFLUX_KV_INSECURE", "true")
    assert made(monkeypatch).kv_server == given


@pytest.mark.parametrize("variable", ["INFERFLUX_TLS_CLIENT_CA", "INFERFLUX_TLS_CA"])
def test_kv_state_is_served_over_tls_to_callers_with_a_certificate_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv("INFERFLUX_TLS_CERT", "worker.pem")
    monkeypatch.setenv("INFERFLUX_TLS_KEY", "worker.key")
    assert made(monkeypatch).kv_server == ""
    monkeypatch.setenv("INFERFLUX_KV_LISTEN", "kv.example.com:7000")
    with pytest.raises(SystemExit):
        made(monkeypatch)
    assert "INFERFLUX_TLS_CLIENT_CA: must be set" in capsys.readouterr().err
    monkeypatch.setenv(variable, "ca.pem")
    assert made(monkeypatch).kv_server == "kv.example.com:7000"
