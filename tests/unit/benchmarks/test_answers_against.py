"""Asking two checkouts the same prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.answers_against import WAYS, main, requests


def test_each_prompt_is_asked_in_each_way_and_the_same_in_each_run() -> None:
    asked = list(requests(20, 8))
    assert asked == list(requests(20, 8))
    assert [way for way, _prompt, _options in asked] == list(WAYS) * 20
    prompts = [prompt for _way, prompt, _options in asked]
    assert prompts[::2] == prompts[1::2]
    assert len(set(prompts)) == 20
    seeds = [options["seed"] for way, _prompt, options in asked if way == "seeded"]
    assert seeds == list(range(20))


def test_a_checkout_without_an_environment_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.answers_against.ROOT", tmp_path)
    assert main([str(tmp_path), "--prompts", "1"]) == 2
    assert "inferctlisnotthere" in "".join(capsys.readouterr().out.split())
