"""A file of YAML is read as a whole or refused with its name, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.config_file import VARIABLE, read_config


class Kind(BaseModel):
    models: list[str] = []


def bomb(levels: int) -> str:
    """Mappings that merge the one before ten times."""
    lines = ["x-a0: &a0 {x: 1}"]
    for i in range(1, levels):
        lines += [f"x-a{i}: &a{i}", f"  <<: [{', '.join([f'*a{i - 1}'] * 10)}]"]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "x-name: 2020-99-99",
        "x-name: 2001-12-14t21:59:43.10-99:30",
        f"x-name: {'9' * 5000}",
        "models: [",
        "models: " + "[" * 5000,
        "? [a]\n: b",
        "x-name: !!python/object/apply:os.system ['true']",
        "\ud800",
        "- a list",
        "models: &a [*a]",
        "models: [5]",
        bomb(30),
    ],
    ids=range(12),
)
def test_what_cannot_be_read_is_refused_by_name_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidArgument) as refused:
        read_config(path, Kind)
    assert refused.value.field == VARIABLE
    assert refused.value.message.startswith(str(path))
    assert refused.value.message.isprintable()


def test_merges_that_people_write_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{bomb(3)}\nmodels: &m [a, b]\nx-others: *m\n")
    assert read_config(path, Kind).models == ["a", "b"]


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_file_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument):
        read_config(tmp_path / name, Kind)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("modles: [a]", "'modles' is not known: did you mean models?"),
        ("aliasses: {}", "'aliasses' is not known: did you mean aliases?"),
        ("logging: {}", "'logging' is not known: there are models and aliases"),
        ("models: [a]\n7: 8", "'7' is not known"),
        ("models:\n\t- a", "line 2, column 1: found character"),
        ("models: a", "models must be a list"),
    ],
)
def test_a_slip_is_refused_with_its_place_and_what_may_be_meant(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        read_config(path, Kind)
    assert why in refused.value.message, refused.value.message


def test_a_part_of_the_writers_own_begins_with_x(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("x-mine: {anything: 1}\nmodels: [a]\n")
    assert read_config(path, Kind).models == ["a"]
