"""A start gives a process other values of constants."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
from harness.starting import patched
from harness.starting_template import patch_constants


@dataclass(frozen=True, slots=True)
class _Limits:
    wait_s: float = 4.0


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """One that has constants, and one that imported one of them."""
    owner, other = ModuleType("patched_owner"), ModuleType("patched_other")
    vars(owner).update(LIMIT_S=30.0, _COUNT=1, LIMITS=_Limits())
    vars(other).update(LIMIT_S=vars(owner)["LIMIT_S"], _COUNT=1)
    for module in (owner, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return owner, other


def test_a_constant_has_its_value_wherever_it_was_imported(modules: tuple[ModuleType, ModuleType]) -> None:
    owner, other = modules
    env = {"HOME": "/"} | patched("patched_owner:LIMIT_S", 0.5) | patched("patched_owner:_COUNT", 2)
    patch_constants(env)
    assert env == {"HOME": "/"}
    assert (vars(owner)["LIMIT_S"], vars(other)["LIMIT_S"]) == (0.5, 0.5)
    assert (vars(owner)["_COUNT"], vars(other)["_COUNT"]) == (2, 1), "a private one is of its module alone"


def test_a_field_of_a_constant_has_its_value(modules: tuple[ModuleType, ModuleType]) -> None:
    patch_constants(patched("patched_owner:LIMITS.wait_s", 0.1))
    assert vars(modules[0])["LIMITS"] == _Limits(0.1)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("place", ["LIMIT", "LIMITS.wait", "_COUNT"])
def test_a_constant_that_is_not_there_or_of_another_type_fails_the_start(place: str) -> None:
    with pytest.raises((AttributeError, AssertionError)):
        patch_constants(patched(f"patched_owner:{place}", 0.5))
