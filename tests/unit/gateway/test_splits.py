"""An alias that is split: each tenant keeps its target, weights are kept, and few move when they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.models.splits import Splits, Sticky, read_splits

N = 4000
TENANTS = [f"tenant-{i}" for i in range(N)]


def every(_target: str) -> bool:
    return True


def chosen(weights: dict[str, float], is_usable: Callable[[str], bool] = every) -> dict[str, str]:
    splits = Splits({"chat": weights})
    return {tenant: splits.choose("chat", tenant, is_usable) for tenant in TENANTS}


def test_targets_get_their_parts_and_every_gateway_chooses_alike() -> None:
    first = chosen({"a": 90, "b": 10})
    assert first == chosen({"b": 10.0, "a": 90.0})
    assert 0.08 < Counter(first.values())["b"] / N < 0.12
    assert 0.31 < Counter(chosen({"a": 1, "b": 1, "c": 1}).values())["c"] / N < 0.36


def test_a_change_of_weights_moves_only_those_that_have_to_move() -> None:
    before, after = chosen({"a": 90, "b": 10}), chosen({"a": 80, "b": 20})
    moved = [tenant for tenant in TENANTS if before[tenant] != after[tenant]]
    assert all((before[tenant], after[tenant]) == ("a", "b") for tenant in moved)
    assert len(moved) == Counter(after.values())["b"] - Counter(before.values())["b"]
    assert 0.08 < len(moved) / N < 0.12


def test_a_target_that_cannot_be_used_leaves_its_part_to_the_others_and_gets_it_back() -> None:
    weights = {"a": 50.0, "b": 30.0, "c": 20.0}
    before, without = chosen(weights), chosen(weights, lambda target: target != "b")
    assert all(before[t] == without[t] for t in TENANTS if before[t] != "b")
    assert set(without.values()) == {"a", "c"}
    assert set(chosen(weights, lambda _: False).values()) == {"a", "b", "c"}


def test_aliases_are_split_independently_of_each_other() -> None:
    splits = Splits({"x": {"a": 1, "b": 1}, "y": {"a": 1, "b": 1}})
    same = sum(splits.choose("x", t, every) == splits.choose("y", t, every) for t in TENANTS)
    assert 0.45 < same / N < 0.55


def test_a_file_says_which_aliases_are_split(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models: []\naliases:\n  chat: {a: 90, 'b:x': 10}\n  sticky: key\n")
    assert read_splits(path) == Splits({"chat": {"a": 90, "b:x": 10}}, Sticky.KEY)
    path.write_text("models: []\n")
    assert read_splits(path) == Splits()
    path.write_text("aliases:\n")
    assert read_splits(path) == Splits()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("aliases: {chat: {a: 0}}", "aliases.chat"),
        ("aliases: {chat: {a: -1}}", "aliases.chat"),
        ("aliases: {chat: {a: .nan}}", "aliases.chat"),
        ("aliases: {chat: {}}", "aliases.chat"),
        ("aliases: {chat: a}", "aliases.chat"),
        ("aliases: [chat]", "aliases"),
        ("aliases: {sticky: user}", "aliases.sticky"),
        ("aliases: {chat: {code: 1}, code: {a: 1}}", "split itself"),
        ("aliases: {'': {a: 1}}", "aliases.'': no model is named"),
        ('aliases: {"a\\nb": {a: 1}}', "aliases.'a\\nb': a model's name is of printable characters"),
        ("aliases: {chat", "no YAML"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        read_splits(path)
    assert refused.value.field == "INFERFLUX_CONFIG"
    assert why in refused.value.message
