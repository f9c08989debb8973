"""docs/operations.md says what the settings classes say."""

from __future__ import annotations

import re

import pytest
from harness.deploy import ROOT
from harness.service_settings import SETTINGS, variables
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from inferflux.common.settings import ServiceSettings

PAGE = (ROOT / "docs/operations.md").read_text()
COMMON = "Variables every service reads"
CLIENTS = "Clients and the one-machine stack"
COMPOSE_FILES = [ROOT / "docker-compose.yml", ROOT / "deploy/publish.yml"]
_ROW = re.compile(r"^\| `((?:INFERFLUX|OTEL)_[A-Z_]+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def rows(section: str) -> dict[str, str]:
    """Variable and default of each row of a section."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = [(m[1], m[2]) for m in _ROW.finditer(text)]
    assert len(dict(found)) == len(found), "a variable is there twice"
    return dict(found)


def shown(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    if value is None:
        return "unset"
    if value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def assert_same(documented: dict[str, str], fields: dict[str, FieldInfo]) -> None:
    assert set(documented) == set(fields)
    fixed = {variable: f for variable, f in fields.items() if f.default_factory is None}
    assert {v: documented[v] for v in fixed} == {v: shown(f) for v, f in fixed.items()}


def test_what_every_service_reads_is_there_with_its_default() -> None:
    assert_same(rows(COMMON), variables(ServiceSettings))


@pytest.mark.parametrize("service", sorted(SETTINGS))
def test_what_a_service_reads_is_there_with_its_default(service: str) -> None:
    common = variables(ServiceSettings)
    own = {v: f for v, f in variables(SETTINGS[service]).items() if v not in common}
    assert_same(rows(service.capitalize()), own)


def test_every_variable_that_code_or_compose_file_names_is_there() -> None:
    documented = {m[1] for m in _ROW.finditer(PAGE)}
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
        named = set(re.findall(r"INFERFLUX_[A-Z_]*[A-Z]\b", path.read_text()))
        assert named <= documented | streams, path.relative_to(ROOT)


def test_the_clients_variables_are_read_by_somebody() -> None:
    sources = [*ROOT.glob("cli/inferflux/**/*.py"), *ROOT.glob("examples/*.py"), *COMPOSE_FILES]
    text = "".join(path.read_text() for path in sources)
    assert all(variable in text for variable in rows(CLIENTS))
