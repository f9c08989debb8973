"""Backoff, readiness answers, model files, log tails: the small deciding parts of the stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferflux.cli.ask.chat import Conversation
from inferflux.cli.ask.generation import assistant_message, user_message
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.rows import bytes_words
from inferflux.cli.stack.backoff import FIRST_S, LONGEST_S, STABLE_S, Backoff
from inferflux.cli.stack.follow import LogTail
from inferflux.cli.stack.options import find_model
from inferflux.cli.stack.readiness import parse_readyz


def test_a_process_that_keeps_dying_is_restarted_ever_less_often() -> None:
    backoff = Backoff()
    delays = [backoff.after(0.1) for _ in range(8)]
    assert delays[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_S


def test_a_long_good_run_forgives_earlier_deaths() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after(0.1)
    assert backoff.after(STABLE_S) == FIRST_S
    assert backoff.after(0.1) == 2 * FIRST_S


def http(status: str, body: object) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(body)}\n".encode()


def test_readiness_says_what_is_missing() -> None:
    conditions = {"bus": {"ok": True, "detail": ""}, "model": {"ok": False, "detail": "loading x.gguf"}}
    answer = http("503 Service Unavailable", {"ready": False, "conditions": conditions})
    assert parse_readyz(answer) == (False, "model: loading x.gguf")


def test_readiness_says_once_what_several_conditions_wait_for() -> None:
    waiting = {name: {"ok": False, "detail": "not asked yet"} for name in ("nats", "queue", "policy")}
    conditions = waiting | {"models": {"ok": False, "detail": "none is served"}}
    said = "nats, queue, policy: not asked yet; models: none is served"
    assert parse_readyz(http("503 x", {"conditions": conditions})) == (False, said)


def test_readiness_names_a_condition_without_words() -> None:
    conditions = {"policy": {"ok": False, "detail": ""}}
    assert parse_readyz(http("503 x", {"conditions": conditions})) == (False, "policy")


def test_ready_is_what_the_status_line_says() -> None:
    assert parse_readyz(http("200 OK", {"ready": True, "conditions": {}})) == (True, "")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1", b"+PONG\r\n", b"HTTP/1.1 404 Not Found\r\n\r\nnope"])
def test_an_answer_that_is_not_ours_is_not_ready(answer: bytes) -> None:
    assert parse_readyz(answer) == (False, "")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no model file .*gone\.gguf \(--model\)"):
        find_model(tmp_path / "gone.gguf")


def test_a_file_that_is_no_gguf_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04rest")
    with pytest.raises(CommandError, match="is not a GGUF file"):
        find_model(path)


def test_the_demo_model_of_the_working_directory_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models" / "inferflux-demo.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert find_model(None) == path


def test_a_log_is_followed_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    tail = LogTail(path)
    assert tail.new_lines() == []
    path.write_text("one\ntw")
    assert tail.new_lines() == ["one"]
    path.write_text("one\ntwo\nthree\n")
    assert tail.new_lines() == ["two", "three"]
    assert tail.new_lines() == []


def test_a_conversation_sends_all_that_was_said() -> None:
    conversation = Conversation("be kind")
    conversation.remember([user_message("one?"), assistant_message("two!")])
    roles = [(message.role, message.content) for message in conversation.ask([user_message("three?")])]
    assert roles == [("system", "be kind"), ("user", "one?"), ("assistant", "two!"), ("user", "three?")]


def test_a_question_is_not_remembered_before_it_is_answered() -> None:
    conversation = Conversation()
    conversation.ask([user_message("lost?")])
    assert [message.content for message in conversation.ask([user_message("kept?")])] == ["kept?"]


def test_a_reset_keeps_the_system_message() -> None:
    conversation = Conversation("be kind")
    conversation.remember([user_message("one?"), assistant_message("two!")])
    conversation.reset()
    assert [message.role for message in conversation.ask([user_message("new?")])] == ["system", "user"]


@pytest.mark.parametrize(
    ("n", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1015 << 20, "1015 MiB"), (3 << 29, "1.5 GiB")],
)
def test_bytes_are_shown_without_an_exponent(n: int, shown: str) -> None:
    assert bytes_words(n) == shown
