"""When changed files are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.decisions import call
from prometheus_client import CollectorRegistry

from inferflux.policy.decide.decisions.cedar import Cedar
from inferflux.policy.decide.decisions.cedar_files import MAX_BYTES, CedarFiles, CedarReload
from inferflux.policy.metrics import DecisionMetrics

ALL = "permit(principal, action, resource);"
NONE = "forbid(principal, action, resource);"


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("a.cedar", ALL)
        self.files = CedarFiles(folder)
        self.changes = 0
        stamp = self.files.stamp()
        self.backend = Cedar(self.files.read())
        self.reload = CedarReload(
            self.files, stamp, self.backend, DecisionMetrics(CollectorRegistry()), on_change=self._changed
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def permits(self) -> bool:
        return self.backend.rules.decide(call()).is_permitted


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_change_is_read_once_it_has_stayed_for_two_looks(world: World) -> None:
    world.write("a.cedar", NONE)
    await world.reload.look()
    assert world.permits
    world.write("a.cedar", NONE + "\n" + NONE)
    await world.reload.look()
    assert world.permits
    await world.reload.look()
    assert not world.permits
    for _ in range(3):
        await world.reload.look()
    assert world.changes == 1


async def test_all_policies_of_a_folder_count_and_other_files_do_not(world: World) -> None:
    world.write("b.txt", NONE)
    for _ in range(2):
        await world.reload.look()
    assert (world.permits, world.changes) == (True, 0)
    world.write("b.cedar", NONE)
    for _ in range(2):
        await world.reload.look()
    assert not world.permits
    (world.folder / "b.cedar").unlink()
    for _ in range(2):
        await world.reload.look()
    assert world.permits


async def test_files_that_cannot_be_used_are_tried_once_and_change_nothing(world: World) -> None:
    world.write("a.cedar", "permit(")
    for _ in range(5):
        await world.reload.look()
    assert (world.permits, world.changes) == (True, 0)
    world.write("a.cedar", NONE)
    for _ in range(2):
        await world.reload.look()
    assert not world.permits


@pytest.mark.parametrize(
    ("data", "why"), [(b"\xff", "cannot read"), (b" " * (MAX_BYTES + 1), "more than"), (None, "no .*cedar")]
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, data: bytes | None, why: str) -> None:
    if data is not None:
        (tmp_path / "a.cedar").write_bytes(data)
    with pytest.raises(ValueError, match=why):
        CedarFiles(tmp_path).read()


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        CedarFiles(tmp_path / "none.cedar").read()
