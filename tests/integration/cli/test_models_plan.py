"""`inferctl models plan` of a file, which another process reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.projectors import tiny_projector
from harness.worker import DEMO_MODEL
from typer.testing import CliRunner

from inferflux.cli.app import app


def test_a_plan_of_the_demo_model_is_a_table_or_json() -> None:
    arguments = ["models", "plan", str(DEMO_MODEL), "--gpus", "2GiB,1GiB", "--memory", "8GiB", "--slots", "2"]
    made = CliRunner().invoke(app, [*arguments, "--kv-type", "q8_0,f16", "--json"])
    assert made.exit_code == 0, made.output
    plan = json.loads(made.output)
    assert (plan["layers"], plan["cells"], plan["gpu_layers"], plan["fits"]) == (6, 2048, -1, True)
    assert [device["name"] for device in plan["devices"]] == ["GPU 0", "GPU 1", "main memory"]
    assert sum(plan["tensor_split"]) == 6
    assert sum(device["kv"] for device in plan["devices"]) == plan["kv_bytes"] > 0
    shown = CliRunner().invoke(app, arguments)
    assert "INFERFLUX_WORKER_GPU_LAYERS=-1" in shown.output
    assert "main memory" in shown.output


def test_a_plan_counts_a_projector_and_refuses_one_of_another_model(tmp_path: Path) -> None:
    good, other = tmp_path / "good.gguf", tmp_path / "other.gguf"
    good.write_bytes(tiny_projector(256).data())
    other.write_bytes(tiny_projector(128).data())
    arguments = ["models", "plan", str(DEMO_MODEL), "--memory", "8GiB", "--json"]
    (alone,) = json.loads(CliRunner().invoke(app, arguments).output)["devices"]
    (seeing,) = json.loads(CliRunner().invoke(app, [*arguments, "--mmproj", str(good)]).output)["devices"]
    assert seeing["weights"] == alone["weights"] + good.stat().st_size
    refused = CliRunner().invoke(app, [*arguments, "--mmproj", str(other)])
    assert refused.exit_code != 0
    assert "n_embd = 256" in str(refused.exception)
    assert "n_embd = 128" in str(refused.exception)


def test_a_gpu_that_is_smaller_than_what_its_driver_takes_has_no_room(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["models", "plan", str(DEMO_MODEL), "--gpus", "3MiB"], env={"HOME": str(tmp_path)}
    )
    assert result.exit_code == 0
    assert "?" not in next(line for line in result.output.splitlines() if line.startswith("GPU 0"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no.gguf"], "no.gguf: there is no such file"),
        (["no.gguf", "--gpus", "many"], "--gpus: 'many' is no amount of memory"),
        (["no.gguf", "--gpus", "24"], "--gpus: '24' is 24 bytes: name a unit"),
        (["no.gguf", "--gpus", ",".join(["1GiB"] * 17)], "--gpus: at most 16"),
        (["no.gguf", "--memory", "0"], "--memory: '0' is no amount"),
        (["no.gguf", "--kv-type", "q9"], "--kv-type: there is no 'q9'"),
        (["no.gguf", "--slots", "5000"], "--slots: must be 1 to"),
        ([__file__], "not a GGUF file"),
        ([str(DEMO_MODEL), "--mmproj", "no.gguf"], "--mmproj: no.gguf: No such file"),
        ([str(DEMO_MODEL), "--mmproj", str(DEMO_MODEL)], "it is no projector"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["models", "plan", *arguments], env={"HOME": str(tmp_path)})
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)


def test_a_conversion_into_a_pipe_prints_its_error_alone(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["models", "convert", str(tmp_path)], env={"HOME": str(tmp_path)})
    assert result.exit_code != 0
    assert result.output == ""
    assert "config.json" in str(result.exception)
