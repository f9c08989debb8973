"""docs/operations.md says what the code says."""

from __future__ import annotations

import re

import pytest
from harness.deploy import COMPOSE_FILES, ROOT
from prometheus_client import Counter, Gauge
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from benchmarks.report import ReportError
from inferflux.common.process import metrics as common_metrics
from inferflux.common.process.gone_settings import GONE
from inferflux.common.process.settings import ORDINARY, ServiceSettings, misspelt
from tools.house.measures import FOR_EXPERTS
from tools.reference import metrics, settings
from tools.reference.__main__ import PAGE, written
from tools.reference.markdown import entries, fill, table

TEXT = PAGE.read_text()
CLIENTS = "Clients and the one-machine stack"
_ROW = re.compile(r"^- `((?:INFERFLUX|OTEL)_[A-Z_]+)`[ :]", re.MULTILINE)
_NAME = re.compile(r"INFERFLUX_[A-Z_]*[A-Z]\b")


class Example(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="EXAMPLE_")

    slots: int = Field(default=4, ge=1, le=1000, description="places to run", json_schema_extra=ORDINARY)
    pause_s: float = Field(default=0.5, gt=0, description="a | b")
    secret: SecretStr = Field(default=SecretStr(""), description="a key")
    mute: str = ""


def rows(section: str) -> list[str]:
    """The variables of a section."""
    text = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = _ROW.findall(text)
    assert len(set(found)) == len(found), "a variable is there twice"
    return found


def test_the_page_is_as_make_docs_writes_it() -> None:
    assert written(TEXT) == TEXT, "run `make docs`"


def test_every_variable_that_code_or_compose_file_names_is_there() -> None:
    of_containers = set(_NAME.findall((ROOT / "docs/deploy.md").read_text()))
    documented = set(_ROW.findall(TEXT))
    files = [
        *ROOT.glob("services/*/inferflux/**/*.py"),
        *ROOT.glob("libs/common/inferflux/common/**/*.py"),
        *ROOT.glob("cli/inferflux/**/*.py"),
        *ROOT.glob("examples/*.py"),
        *COMPOSE_FILES,
        ROOT / "Makefile",
    ]
    assert len(files) > 50
    streams = {"INFERFLUX_JOBS", "INFERFLUX_TOKENS"}
    for path in files:
        named = set(_NAME.findall(path.read_text()))
        named -= of_containers if path in COMPOSE_FILES else set()
        named = {name if name in documented else name.removesuffix("_FILE") for name in named}
        assert named <= documented | streams | set(GONE), path.relative_to(ROOT)


def test_no_service_takes_a_variable_of_another_for_misspelt() -> None:
    documented = set(_ROW.findall(TEXT))
    for service in settings.SETTINGS.values():
        assert misspelt(service, documented) == {}


def test_the_clients_variables_are_read_by_the_client() -> None:
    ours = ("cli/inferflux/**/*.py", "libs/api/inferflux/api/*.py", "examples/*.py")
    sources = [*(path for pattern in ours for path in ROOT.glob(pattern)), *COMPOSE_FILES]
    text = "".join(path.read_text() for path in sources)
    assert all(variable in text for variable in rows(CLIENTS))


def test_no_metric_is_there_twice() -> None:
    names = [metrics.exposed_name(metric) for found in metrics.metrics().values() for metric in found]
    assert len(names) > 50
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("service", sorted(settings.SETTINGS))
def test_a_list_names_every_variable_that_the_service_reads(service: str) -> None:
    block = settings.blocks()[f"settings of the {service}"]
    assert set(_ROW.findall(block)) == set(settings.own_variables(service))


def test_a_setting_shows_default_bounds_and_description() -> None:
    fields = Example.model_fields
    assert settings.default_text(fields["slots"]) == "`4`"
    assert settings.allowed_text(fields["slots"]) == "1 to 1,000"
    assert settings.allowed_text(fields["pause_s"]) == "> 0"
    assert settings.default_text(fields["secret"]) == "empty"
    assert settings.allowed_text(fields["log_format"]) == "`console`, `json`"


def test_settings_for_experts_have_a_list_of_their_own() -> None:
    fields = {name: Example.model_fields[name] for name in ("slots", "pause_s")}
    ordinary, experts = settings.lists(fields).split(FOR_EXPERTS)
    assert "`slots`" in ordinary
    assert "`pause_s`" not in ordinary
    assert "`pause_s`" in experts


def test_a_setting_without_a_description_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="EXAMPLE_MUTE has no description"):
        settings.lists({"EXAMPLE_MUTE": Example.model_fields["mute"]})


def test_a_counter_has_the_name_that_is_exposed() -> None:
    assert metrics.exposed_name(Counter("inferflux_x", "Xs.", registry=None)) == "inferflux_x_total"
    assert metrics.exposed_name(Gauge("inferflux_y", "Ys.", registry=None)) == "inferflux_y"


def test_a_bar_within_a_cell_does_not_end_it() -> None:
    assert table(["a"], [["x | y"]]) == "| a |\n|---|\n| x \\| y |"


def test_a_long_entry_is_broken_between_words_and_not_within_links_or_code() -> None:
    words = " ".join(["word"] * 19)
    entry = entries([("`a`", "default: `1`", "", f"{words} [a link of words](page.md), `some code`")])
    first, second = entry.split("\n")
    assert first.startswith("- `a` (default: `1`): word")
    assert second == "  [a link of words](page.md), `some code`"
    assert len(first) <= 120


def test_a_page_without_the_place_of_a_table_is_refused() -> None:
    with pytest.raises(ReportError, match="metrics of the moon"):
        fill(TEXT, {"metrics of the moon": ""})


def test_metrics_of_every_service_are_in_the_module_that_every_service_imports() -> None:
    everywhere = vars(common_metrics).values()
    for metric in metrics.metrics()["every service"]:
        assert any(metric is one for one in everywhere), metrics.exposed_name(metric)


def test_a_setting_is_named_by_more_than_its_list() -> None:
    """By a figure, page, deployment or test of processes: what nothing varies should be a constant."""
    folders = ("docs/**/*.md", "benchmarks/**/*.py", "cli/**/*.py", "tests/*/**/*.py")
    paths = {path for folder in folders for path in ROOT.glob(folder)} | set(COMPOSE_FILES)
    paths -= {PAGE, *ROOT.glob("tests/unit/**/*.py")}
    texts = [re.sub(r"<!-- settings of .*?<!-- end of", "", TEXT, flags=re.DOTALL)]
    texts += [path.read_text() for path in paths]
    named = {name for text in texts for name in re.findall(r"(?:INFERFLUX|OTEL)_[A-Z_]*[A-Z]\b", text)}
    fields = {v: f for service in settings.SETTINGS.values() for v, f in settings.variables(service).items()}
    experts = {v for v, field in fields.items() if field.json_schema_extra != ORDINARY}
    assert not experts - named, experts - named
