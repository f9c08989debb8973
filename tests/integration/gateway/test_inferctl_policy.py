"""`inferctl admin api-keys`, `roles`, `rate-limit` and `guardrails`: through a gateway, to policy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc.aio
import pytest
from harness.gateway import GatewayProcess
from harness.inferctl import run
from harness.policy import PolicyProcess

from inferflux.v1 import generation_pb2, policy_pb2

KEY_ID = re.compile(r"key_[0-9a-f]{16}")
SECRET = re.compile(r"^ifx_[A-Za-z0-9_-]{43}$", re.MULTILINE)


@pytest.fixture
def env(gateway: GatewayProcess, admin_key: str, tmp_path: Path) -> dict[str, str]:
    return {
        "INFERFLUX_ENDPOINT": f"127.0.0.1:{gateway.port}",
        "INFERFLUX_API_KEY": admin_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


async def done(env: dict[str, str], *arguments: str) -> str:
    result = await run("admin", *arguments, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout


async def test_a_keys_life(env: dict[str, str], policy: PolicyProcess) -> None:
    made = await done(
        env,
        "api-keys",
        "create",
        "cli",
        "nightly",
        "--scope",
        "inference",
        "--model",
        "demo*",
        "--worker-pool",
        "gold",
        "--expires",
        "2h",
        "--deterministic",
    )
    (secret,), (key_id,) = SECRET.findall(made), set(KEY_ID.findall(made))
    admitted = await policy.admit(secret)
    assert (list(admitted.models), list(admitted.worker_pools)) == (["demo*"], ["gold"])
    assert admitted.deterministic
    listed = await done(env, "api-keys", "list", "--tenant", "cli")
    assert key_id in listed
    assert "nightly" in listed
    assert secret not in listed

    changed = await done(
        env, "api-keys", "update", key_id, "--max-priority", "7", "--reset", "models", "--expires", "never"
    )
    assert "never" in changed
    admitted = await policy.admit(secret)
    assert (admitted.max_priority, list(admitted.models)) == (7, [])

    rotated = json.loads(await done(env, "api-keys", "rotate", key_id, "--overlap", "1h", "--json"))
    assert rotated["api_key"]["key_id"] == key_id
    for each in (secret, rotated["secret"]):
        await policy.admit(each)
    assert json.loads(await done(env, "api-keys", "revoke", key_id, "--json")) == {}
    with pytest.raises(grpc.aio.AioRpcError):
        await policy.admit(rotated["secret"])


async def test_roles_and_keys_that_have_them(env: dict[str, str], policy: PolicyProcess) -> None:
    await done(env, "roles", "set", "cli-role", "--scope", "models", "--description", "sees models")
    listed = json.loads(await done(env, "roles", "list", "--json"))["roles"]
    assert {"name": "cli-role", "description": "sees models"}.items() <= listed[-1].items()
    made = json.loads(await done(env, "api-keys", "create", "cli", "x", "--role", "cli-role", "--json"))
    flags = ("--cache-scope", "catalogue", "--skip-answer-cache", "--deterministic", "--json")
    changed = json.loads(await done(env, "api-keys", "update", made["api_key"]["key_id"], *flags))["api_key"]
    assert (changed["cache_scope"], changed["skip_answer_cache"]) == ("catalogue", True)
    admitted = await policy.admit(made["secret"], "models")
    assert (admitted.tenant, admitted.deterministic) == ("cli", True)
    await done(env, "api-keys", "update", made["api_key"]["key_id"], "--no-deterministic")
    assert not (await policy.admit(made["secret"], "models")).deterministic
    assert json.loads(await done(env, "roles", "delete", "cli-role", "--json")) == {}
    assert "cli-role" not in await done(env, "roles", "list")


async def test_limits_are_set_shown_and_deleted(env: dict[str, str]) -> None:
    flags = ("--requests-per-minute", "1200", "--concurrent", "3")
    assert "1,200" in await done(env, "rate-limit", "set", "tenant:cli-limits", *flags)
    shown = await done(env, "rate-limit", "get", "tenant:cli-limits")
    assert re.search(r"requests per minute +0 +1,200", shown)
    assert re.search(r"concurrent requests +0 +3", shown)
    assert "tenant:cli-limits" in await done(env, "rate-limit", "list")
    assert json.loads(await done(env, "rate-limit", "delete", "tenant:cli-limits", "--json")) == {}
    assert "has no limits" in await done(env, "rate-limit", "get", "tenant:cli-limits")


async def test_usage_is_what_was_settled(env: dict[str, str], policy: PolicyProcess) -> None:
    assert re.search(r"requests +0", await done(env, "usage", "cli-usage"))
    for attempt in ("a", "b"):
        usage = generation_pb2.Usage(prompt_tokens=1000, cached_prompt_tokens=400, completion_tokens=30)
        settled = policy_pb2.SettleRequest(
            request_id="r",
            attempt_id=attempt,
            tenant="cli-usage",
            key_id="key_0123456789abcdef",
            outcome="stop",
            usage=usage,
        )
        await policy.stub.Settle(settled, timeout=10)
    shown = await done(env, "usage", "cli-usage")
    assert re.search(r"prompt tokens +2,000 +800", shown)
    found = json.loads(await done(env, "usage", "cli-usage", "--json"))
    assert (found["requests"], found["completion_tokens"]) == ("2", "60")
    refused = await run("admin", "usage", "no tenant", env=env)
    assert (refused.returncode, "tenant" in refused.stderr) == (1, True)


async def test_guardrails_are_set_shown_checked_and_deleted(env: dict[str, str], tmp_path: Path) -> None:
    listed = tmp_path / "blocked.txt"
    listed.write_text("first\n\n  Second text \n")
    own = ("--tenant", "cli-guard", "--model", "demo")
    flags = ("--blocklist", str(listed), "--block-word", "ass", "--pattern", "x{3}", "--stream")
    looks = ("--look-alikes", "any", "--ignore-accents")
    made = json.loads(
        await done(env, "guardrails", "set", *own, *flags, *looks, "--max-tokens", "9", "--json")
    )
    assert {"n_blocked": 3, "n_patterns": 1, "max_tokens": 9, "guards_stream": True}.items() <= (
        made["guardrails"].items()
    )
    assert "cli-guard" in await done(env, "guardrails", "list")
    shown = await done(env, "guardrails", "get", *own)
    assert re.search(r"blocked\[1\] +Second text", shown)
    assert re.search(r"blocked\[2\] +word +ass", shown)
    assert re.search(r"look_alikes +any", shown)
    assert "it passes" in await done(env, "guardrails", "check", "a class", *own)
    refused = await run("admin", "guardrails", "check", "a S\u0415CÓND text", *own, env=env)
    assert (refused.returncode, refused.stdout) == (3, "it is refused: cli-guard/demo blocked[1]\n")

    kept = tmp_path / "rules.json"
    kept.write_text(await done(env, "guardrails", "get", *own, "--json"))
    copied = ("--tenant", "cli-copy", "--rules", str(kept))
    await done(env, "guardrails", "set", *copied)
    copy = json.loads(await done(env, "guardrails", "get", "--tenant", "cli-copy", "--json"))
    assert copy["rules"] == json.loads(kept.read_text())["rules"]

    version = made["guardrails"]["version"]
    stale = await run("admin", "guardrails", "delete", *own, "--version", str(int(version) - 1), env=env)
    assert "changed meanwhile" in stale.stderr
    deleted = await done(env, "guardrails", "delete", *own, "--version", version, "--json")
    assert json.loads(deleted) == {}
    await done(env, "guardrails", "delete", "--tenant", "cli-copy")
    assert "cli-guard" not in await done(env, "guardrails", "list")


async def test_the_policy_is_exported_edited_and_imported(env: dict[str, str], tmp_path: Path) -> None:
    await done(env, "roles", "set", "cli-moved", "--scope", "models")
    file = tmp_path / "policy.json"
    assert await done(env, "policy", "export", str(file)) == ""
    assert file.stat().st_mode & 0o777 == 0o600
    document = json.loads(file.read_text())
    assert "secret_sha256" not in file.read_text()
    assert "0 changes" in await done(env, "policy", "import", str(file))

    (role,) = (role for role in document["roles"] if role["name"] == "cli-moved")
    role["description"] = "was moved"
    file.write_text(json.dumps(document))
    would = await done(env, "policy", "import", str(file), "--dry-run")
    assert re.search(r"role +cli-moved +update +description", would)
    assert "nothing is changed" in would
    made = json.loads(await done(env, "policy", "import", str(file), "--json"))
    change = {"kind": "role", "name": "cli-moved", "action": "update", "fields": ["description"]}
    assert made["changes"] == [change]
    assert "was moved" in await done(env, "roles", "list")

    stale = await run("admin", "policy", "import", str(file), env=env)
    assert stale.returncode == 0, "the same again changes nothing"
    role["description"] = "was moved twice"
    file.write_text(json.dumps(document))
    stale = await run("admin", "policy", "import", str(file), env=env)
    assert stale.returncode == 1
    assert "role cli-moved has version 2, and the document has 1" in stale.stderr
    assert "1 change" in await done(env, "policy", "import", str(file), "--ignore-versions")
    await done(env, "roles", "delete", "cli-moved")


async def test_hashes_are_exported_where_they_are_asked_for(env: dict[str, str]) -> None:
    document = json.loads(await done(env, "policy", "export", "--with-hashes"))
    assert all(re.fullmatch("[0-9a-f]{64}", key["secret_sha256"]) for key in document["api_keys"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no JSON object"),
        ("{", "has no policy"),
        ('{"rolls": []}', 'no field named "rolls"'),
        ('{"format": 2}', "document.format is 2"),
        ('{"format": 1, "roles": [{"name": "x", "scopes": ["root"]}]}', "(document.roles[0].scopes[0])"),
    ],
)
async def test_a_document_that_is_none_is_said_in_a_line(
    env: dict[str, str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)
    result = await run("admin", "policy", "import", str(file), env=env)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("policy", "import", "/no/such/file"), "cannot be read"),
        (("policy", "export", "/no/such/folder/file"), "cannot be written"),
        (("guardrails", "set"), "there is no rule"),
        (("guardrails", "set", "--pattern", "("), "guardrails.rules.patterns[0]"),
        (("guardrails", "get", "--tenant", "unknown"), "there are no guardrails unknown/"),
        (("api-keys", "create", "A", "x"), "a tenant is"),
        (("api-keys", "create", "a", "x", "--scope", "root"), "unknown scope 'root'"),
        (("api-keys", "create", "a", "x", "--role", "no-such"), "there is no role no-such"),
        (("api-keys", "update", "key_0123456789abcdef", "--name", "x"), "there is no key"),
        (("api-keys", "update", "key_0123456789abcdef"), "no field to change is named"),
        (("api-keys", "revoke", "mine"), "a key id is"),
        (("roles", "set", "admin", "--scope", "models"), "every InferFlux has"),
        (("rate-limit", "set", "acme"), "a subject is"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_line(
    env: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    result = await run("admin", *arguments, env=env)
    assert result.returncode == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["90", "d", "1.5h", "2w"])
async def test_a_duration_that_is_none_is_a_matter_of_usage(env: dict[str, str], text: str) -> None:
    result = await run("admin", "api-keys", "create", "a", "x", "--expires", text, env=env)
    assert result.returncode == 2
    assert "--expires" in result.stderr
