"""Groups of flags that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from inferflux.cli.app import app
from inferflux.cli.ask.flags import GenerationFlags
from inferflux.cli.reach.flag_groups import with_flag_groups
from inferflux.cli.up_flags import UpFlags
from inferflux.v1.generation_pb2 import SPECULATION_NGRAM, SPECULATION_UNSPECIFIED


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option(min=0, help="In steps.")] = 1
    is_tall: Annotated[bool, typer.Option("--tall")] = False


def run(*words: str) -> tuple[int, str]:
    """Exit status and output of a command with such flags."""
    app = typer.Typer()

    @app.command()
    @with_flag_groups
    def draw(
        name: Annotated[str, typer.Argument()],
        *,
        size: Size,
        colour: Annotated[str, typer.Option(help="By name.")] = "red",
    ) -> None:
        """Draw a thing."""
        typer.echo(f"{name} {size.width} {size.is_tall} {colour}")

    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "drawn"),
    [
        (["box"], "box 1 False red"),
        (["box", "--width", "3", "--tall"], "box 3 True red"),
        (["--colour", "blue", "--width", "2", "box"], "box 2 False blue"),
    ],
)
def test_a_field_of_a_group_is_a_flag_with_its_default(words: list[str], drawn: str) -> None:
    assert run(*words) == (0, f"{drawn}\n")


def test_a_value_that_a_field_refuses_is_named() -> None:
    status, output = run("box", "--width", "-1")
    assert status == 2
    assert "--width" in output


def test_help_shows_the_flags_of_a_group_in_the_place_of_the_group() -> None:
    _, output = run("--help")
    assert output.index("--width") < output.index("--tall") < output.index("--colour")
    assert "Draw a thing." in output
    assert "--size" not in output


def test_flags_make_the_generation_that_they_ask_for() -> None:
    flags = GenerationFlags(max_tokens=5, seed=3, priority=7, resume_window=9, ignore_eos=True, choice=["a"])
    generation = flags.generation()
    params = generation.params()
    assert (params.max_tokens, params.sampling.seed, params.ignore_eos) == (5, 3, True)
    assert list(params.constraint.choice.texts) == ["a"]
    assert (generation.priority, generation.resume_window_s) == (7, 9)


def test_flags_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(typer.BadParameter, match="--schema, --json-object"):
        GenerationFlags(json_object=True, schema=Path("schema.json")).generation()


def test_the_source_of_drafts_is_a_flag() -> None:
    assert GenerationFlags(speculate="ngram").generation().params().speculation == SPECULATION_NGRAM
    assert GenerationFlags().generation().params().speculation == SPECULATION_UNSPECIFIED


@pytest.mark.parametrize("words", [["--nats", "3"], ["--redis=6"], ["--workers", "2", "--sentinel"]])
def test_a_flag_that_started_a_cluster_is_refused_with_where_clusters_are_started(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["up", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "is gone: compose starts clusters (docker-compose.fleet.yml" in result.output


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        ((None, None, None), (1, 0, 0)),
        ((2, 0, 0), (2, 0, 0)),
        ((None, 1, 2), (0, 1, 2)),
        ((None, 2, None), (0, 2, 1)),
        ((None, None, 3), (0, 1, 3)),
        ((None, 0, 3), (0, 0, 3)),
        ((1, 1, 1), (1, 1, 1)),
    ],
)
def test_a_role_comes_with_the_other_and_in_the_place_of_whole_workers(
    flags: tuple[int | None, int | None, int | None],
    counts: tuple[int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("INFERFLUX_WORKER_DISK_PATH", raising=False)
    workers, prefill, decode = flags
    options = UpFlags(
        model="demo", state_dir=tmp_path, workers=workers, prefill=prefill, decode=decode
    ).options()
    assert (options.workers, options.prefill, options.decode) == counts
    assert options.has_disk_tier == (counts[2] == 0)


def test_more_workers_than_a_machine_takes_are_refused_by_the_flags(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="70 workers in all: 64 at most") as caught:
        UpFlags(model="demo", state_dir=tmp_path, workers=10, prefill=20, decode=40).options()
    assert "--prefill" in str(caught.value.param_hint)


def test_a_stack_has_servers_of_its_own_whatever_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a shell with a fleet's URLs has `inferctl up` join the fleet."""
    monkeypatch.setenv("INFERFLUX_NATS_URL", "nats://a:1,nats://b:2")
    monkeypatch.setenv("INFERFLUX_REDIS_URL", "redis://c:3/0")
    options = UpFlags(model="demo", state_dir=tmp_path).options()
    assert (options.nats_url, options.redis_url) == ("", "")
