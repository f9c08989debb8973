"""Tokens beside API keys: of a provider by others, and of one that misbehaves."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness.audit import lines_in
from harness.http_proxy import http_proxy
from harness.issuers import Provider, ScriptedIssuer, issuers_variables, scripted
from harness.oidc_keys import SigningKey, claims_of, encoded, part
from harness.policy import PolicyProcess, bearer, refusal, until
from harness.servers import ServerProcess
from harness.starting import patched

from inferflux.common.contract.callers.credentials import subject_id
from inferflux.common.contract.errors import from_rpc
from inferflux.policy.decide import keys
from inferflux.v1 import policy_pb2

from .conftest import StartPolicy

RSA, EC, STRANGER = SigningKey.rsa(), SigningKey.ec(), SigningKey.rsa()


@dataclass(frozen=True)
class Taking:
    """A policy process that takes the tokens of an issuer."""

    policy: PolicyProcess
    issuer: ScriptedIssuer
    admin: str
    directory: Path


@pytest.fixture(scope="session")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Provider]:
    server = Provider(tmp_path_factory.mktemp("provider"))
    await server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def taking(
    tmp_path_factory: pytest.TempPathFactory, policy_valkey: ServerProcess
) -> AsyncIterator[Taking]:
    """One that many tests share, of an issuer with a key of each kind: none of them changes either."""
    admin, directory = keys.generate(), tmp_path_factory.mktemp("taking")
    async with scripted(RSA, EC) as issuer:
        fields = fields_of(
            issuer,
            roles_claim="groups",
            roles={"staff": ["user"], "ops": ["operator"], "support": ["oidc-support"]},
            allowed_scopes=["inference", "models", "policy", "status"],
        )
        variables = issuers_variables(fields) | {"INFERFLUX_POLICY_BOOTSTRAP_KEY": admin}
        policy = PolicyProcess(directory, policy_valkey.url, **variables)
        policy.start()
        await policy.wait_ready()
        yield Taking(policy, issuer, admin, directory)
        await policy.close()


def fields_of(issuer: ScriptedIssuer, **more: Any) -> dict[str, Any]:
    """What a setting says of an issuer."""
    given = {
        "issuer": issuer.issuer,
        "audiences": ["inferflux"],
        "leeway_s": 5,
        "tenant_claim": "org",
        "scopes_claim": "scope",
    }
    return {name: value for name, value in (given | more).items() if value is not None}


def good(issuer: ScriptedIssuer, key: SigningKey | None = None, **claims: Any) -> str:
    return issuer.token(key, **({"org": "acme", "scope": "inference models"} | claims))


async def refused(policy: PolicyProcess, token: str) -> None:
    """The token is refused, and its caller is told nothing else."""
    error = await refusal(policy.admit(token))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (from_rpc(error).reason, from_rpc(error).message) == (
        "INVALID_TOKEN",
        "this token is not accepted",
    )


async def unavailable(policy: PolicyProcess, token: str) -> None:
    error = await refusal(policy.admit(token))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert from_rpc(error).reason == "ISSUER_UNAVAILABLE"


async def test_a_user_of_a_provider_by_others_is_admitted(
    serve_policy: StartPolicy, policy_valkey: ServerProcess, provider: Provider
) -> None:
    fields = {
        "issuer": provider.issuer,
        "audiences": ["inferflux"],
        "tenant_claim": "company.name",
        "tenants": {"Acme Ltd.": "acme"},
        "roles_claim": "groups",
        "roles": {"staff": ["user"]},
    }
    policy = await serve_policy(policy_valkey.url, **issuers_variables(fields))
    claims = {"company": {"name": "Acme Ltd."}, "groups": ["staff", "everyone"]}
    token = await provider.id_token("alice", "inferflux", **claims)
    admitted = await policy.admit(token)
    assert (admitted.tenant, admitted.issuer, admitted.subject) == ("acme", provider.issuer, "alice")
    assert admitted.key_id == subject_id(provider.issuer, "alice")
    assert list(admitted.scopes) == ["inference", "models"]
    assert (await policy.admit(token)).key_id == admitted.key_id
    await refused(policy, await provider.id_token("alice", "another-client", **claims))
    stranger = await provider.id_token("eve", "inferflux", company={"name": "Eve Ltd."}, groups=["staff"])
    await refused(policy, stranger)
    header, claims_part, signature = token.split(".")
    await refused(policy, f"{header}.{claims_part}.{encoded(b'x' * 256)}")
    await refused(policy, f"{part({'alg': 'none'})}.{claims_part}.")
    await refused(policy, f"{header}.{part(claims_of(provider.issuer, **claims))}.{signature}")


@pytest.mark.parametrize("key", [RSA, EC], ids=["RS256", "ES256"])
async def test_a_token_is_admitted_as_a_key_is(taking: Taking, key: SigningKey) -> None:
    admitted = await taking.policy.admit(good(taking.issuer, key, sub="bob"))
    assert (admitted.tenant, admitted.subject) == ("acme", "bob")
    assert list(admitted.scopes) == ["inference", "models"]
    assert admitted.max_priority == 4
    error = await refusal(taking.policy.admit(good(taking.issuer, key), "status"))
    assert from_rpc(error).reason == "MISSING_SCOPE"


async def test_a_token_that_was_taken_before_expires_all_the_same(taking: Taking) -> None:
    now = int(time.time())
    token = good(taking.issuer, iat=now - 60, exp=now - 2)  # within the leeway of 5 s, still
    await taking.policy.admit(token)

    async def is_refused() -> bool:
        try:
            await taking.policy.admit(token)
        except grpc.aio.AioRpcError as error:
            return from_rpc(error).reason == "INVALID_TOKEN"
        return False

    await until(is_refused)


async def test_keys_are_admitted_as_before(taking: Taking) -> None:
    made = await taking.policy.create_key(taking.admin)
    admitted = await taking.policy.admit(made.secret)
    assert (admitted.key_id, admitted.issuer, admitted.subject) == (made.api_key.key_id, "", "")
    for wrong in (keys.generate(), "hunter2", "a.b", "a." * 5000 + "a"):
        error = await refusal(taking.policy.admit(wrong))
        assert from_rpc(error).reason == "UNKNOWN_API_KEY"


async def test_without_issuers_a_token_is_an_unknown_key(
    serve_policy: StartPolicy, policy_valkey: ServerProcess, taking: Taking
) -> None:
    policy = await serve_policy(policy_valkey.url)
    error = await refusal(policy.admit(good(taking.issuer)))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert from_rpc(error).reason == "UNKNOWN_API_KEY"


NOW = int(time.time())
_RETRY_S = "inferflux.policy.settings:_KEY_TIMES.retry_s"


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "other"},
        {"aud": None},
        {"iss": "https://idp.example.com"},
        {"exp": NOW - 600},
        {"exp": None},
        {"nbf": NOW + 6000},
        {"iat": NOW + 6000, "exp": NOW + 9000},
        {"iat": None},
        {"iat": NOW - 200_000},
        {"sub": None},
        {"org": None},
        {"org": "Not A Tenant"},
    ],
)
async def test_a_token_that_is_not_for_us_or_not_of_now_is_refused(
    taking: Taking, claims: dict[str, Any]
) -> None:
    await refused(taking.policy, good(taking.issuer, **claims))


async def test_attackers_tokens_are_refused_and_all_alike(taking: Taking) -> None:
    issuer, claims = taking.issuer, part(claims_of(taking.issuer.issuer, org="acme", scope="inference"))
    unsigned = part({"alg": "none", "typ": "JWT"})
    await refused(taking.policy, f"{unsigned}.{claims}.")
    as_secret = f"{part({'alg': 'HS256', 'kid': RSA.kid})}.{claims}"
    await refused(taking.policy, f"{as_secret}.{_hs256(as_secret, RSA.public_pem())}")
    await refused(taking.policy, good(issuer, STRANGER))
    brought = {"jwk": STRANGER.jwk(), "jku": f"{issuer.issuer}/mine"}
    await refused(taking.policy, STRANGER.sign(claims_of(issuer.issuer, org="acme"), **brought))
    for kid in ("../../etc/passwd", "/mine", "http://127.0.0.1/", "rsa-1\n", "x" * 2000):
        await refused(taking.policy, RSA.sign(claims_of(issuer.issuer, org="acme"), kid=kid))
    deep = encoded(b"[" * 2000)
    await refused(taking.policy, f"{deep}.{deep}.{deep}")
    assert set(issuer.asked) <= {"/.well-known/openid-configuration", "/keys"}


def _hs256(signed: str, secret: bytes) -> str:
    return encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())


async def test_a_huge_token_is_refused_unread(taking: Taking) -> None:
    error = await refusal(taking.policy.admit(good(taking.issuer, more="x" * 8000)))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_roles_are_those_of_the_store_and_follow_it(taking: Taking) -> None:
    token = good(taking.issuer, scope="", groups=["support"])
    error = await refusal(taking.policy.admit(token))
    assert from_rpc(error).reason == "MISSING_SCOPE"
    role = policy_pb2.Role(name="oidc-support", scopes=["inference"], models=["small*"])
    await taking.policy.stub.SetRole(policy_pb2.SetRoleRequest(role=role), metadata=bearer(taking.admin))
    assert list((await taking.policy.admit(token)).models) == ["small*"]


async def test_a_token_gets_no_scope_that_its_issuer_may_not_give(taking: Taking) -> None:
    admitted = await taking.policy.admit(good(taking.issuer, scope="inference admin cluster", groups=["ops"]))
    assert list(admitted.scopes) == ["inference", "models", "status", "policy", "policy:read"]
    error = await refusal(taking.policy.admit(good(taking.issuer, scope="admin"), "admin"))
    assert from_rpc(error).reason == "MISSING_SCOPE"


async def test_a_subject_and_its_tenant_have_limits(taking: Taking) -> None:
    token = good(taking.issuer, sub="limited", org="limited-org")
    subject = f"key:{subject_id(taking.issuer.issuer, 'limited')}"
    await taking.policy.limit(taking.admin, subject, requests_per_minute=1)
    await taking.policy.limit(taking.admin, "tenant:limited-org", requests_per_minute=2)

    def counted(credential: str) -> policy_pb2.AdmitRequest:
        return policy_pb2.AdmitRequest(
            credential=credential, scope="inference", request_id="r-1", is_counted=True
        )

    await taking.policy.stub.Admit(counted(token))
    error = await refusal(taking.policy.stub.Admit(counted(token)))
    assert from_rpc(error).reason == "RATE_LIMITED"
    assert subject.removeprefix("key:") in from_rpc(error).message
    other = good(taking.issuer, sub="another", org="limited-org")
    await taking.policy.stub.Admit(counted(other))
    error = await refusal(taking.policy.stub.Admit(counted(other)))
    assert "tenant limited-org" in from_rpc(error).message


async def test_what_a_token_runs_is_reserved_and_settled_for_its_subject(taking: Taking) -> None:
    admitted = await taking.policy.admit(good(taking.issuer, sub="runner"))
    await taking.policy.limit(taking.admin, f"key:{admitted.key_id}", tokens_per_minute=1000)
    ids: dict[str, Any] = {
        "request_id": "oidc-1",
        "attempt_id": "a-1",
        "tenant": admitted.tenant,
        "key_id": admitted.key_id,
    }
    await taking.policy.stub.Reserve(
        policy_pb2.ReserveRequest(**ids, model="demo", prompt_tokens=100, max_tokens=100)
    )
    assert (await taking.policy.used(taking.admin, f"key:{admitted.key_id}"))["tokens_per_minute"] == 200
    settle = policy_pb2.SettleRequest(**ids, model="demo", outcome="stop")
    settle.usage.prompt_tokens, settle.usage.completion_tokens = 100, 7
    await taking.policy.stub.Settle(settle)
    assert (await taking.policy.used(taking.admin, f"key:{admitted.key_id}"))["tokens_per_minute"] == 107


async def test_a_token_manages_keys_within_its_scopes_and_the_trail_says_who(taking: Taking) -> None:
    token = good(taking.issuer, sub="manager", scope="policy inference")
    made = await taking.policy.create_key(token, tenant="managed")
    error = await refusal(taking.policy.create_key(token, scopes=("admin",)))
    assert from_rpc(error).reason == "BEYOND_OWN_SCOPES"
    await refusal(taking.policy.list_keys(good(taking.issuer, exp=NOW - 600, scope="policy")))

    async def are_written() -> bool:
        lines = lines_in(taking.directory / "audit")
        is_refused = any(line["method"] == "ListApiKeys" for line in lines)
        return is_refused and any(line.get("name") == made.api_key.key_id for line in lines)

    await until(are_written)
    lines = lines_in(taking.directory / "audit")
    (line,) = [each for each in lines if each.get("name") == made.api_key.key_id]
    assert (line["issuer"], line["subject"]) == (taking.issuer.issuer, "manager")
    assert line["key_id"] == subject_id(taking.issuer.issuer, "manager")
    (line,) = [each for each in lines if each["method"] == "ListApiKeys"]
    assert (line["decision"], line["reason"], line["key_id"]) == ("refused", "INVALID_TOKEN", "")
    signature = token.rpartition(".")[2]
    assert signature not in taking.policy.log_path.read_text()
    assert all(signature not in json.dumps(each) for each in lines)


async def test_the_id_of_a_subject_is_no_key_that_can_be_managed(taking: Taking) -> None:
    key_id = subject_id(taking.issuer.issuer, "alice")
    error = from_rpc(await refusal(taking.policy.revoke(taking.admin, key_id)))
    assert error.reason == "INVALID_ARGUMENT"


async def test_why_tokens_are_refused_is_counted(taking: Taking) -> None:
    await refused(taking.policy, good(taking.issuer, aud="other"))
    url = f"http://127.0.0.1:{taking.policy.metrics_port}/metrics"
    with await asyncio.to_thread(urllib.request.urlopen, url, timeout=5) as answer:
        text = answer.read().decode()
    assert 'inferflux_policy_refused_tokens_total{why="audience"}' in text


@pytest.mark.parametrize("where", ["discovery", "well-known", "url"])
async def test_keys_are_found_where_the_setting_says(
    serve_policy: StartPolicy, policy_valkey: ServerProcess, where: str
) -> None:
    async with scripted(EC) as issuer:
        more = {"jwks_url": f"{issuer.issuer}/keys"} if where == "url" else {"keys_at": where}
        policy = await serve_policy(policy_valkey.url, **issuers_variables(fields_of(issuer, **more)))
        await policy.admit(good(issuer))
        expected = {
            "discovery": {"/.well-known/openid-configuration", "/keys"},
            "well-known": {"/.well-known/jwks.json"},
            "url": {"/keys"},
        }
        assert set(issuer.asked) == expected[where]


async def test_keys_are_asked_for_through_the_proxy_of_the_environment(
    start_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(EC) as issuer, http_proxy() as proxy:
        named = issuers_variables(fields_of(issuer)) | {"http_proxy": proxy.url, "HTTPS_PROXY": proxy.url}
        policy = await start_policy(policy_valkey.url, **named)
        await policy.admit(good(issuer))
        assert proxy.asked
        assert all(f" {issuer.issuer}/" in asked for asked in proxy.asked)


async def test_keys_are_asked_for_before_they_are_needed_and_kept(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        policy = await serve_policy(policy_valkey.url, **issuers_variables(fields_of(issuer)))
        await until(_asked(issuer, 2))
        for _ in range(20):
            await policy.admit(good(issuer))
        assert len(issuer.asked) == 2
        await issuer.stop()
        await policy.admit(good(issuer))


async def test_a_new_key_is_asked_for_and_one_that_was_taken_back_is_refused(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        variables = issuers_variables(fields_of(issuer)) | patched(_RETRY_S, 0.2)
        policy = await serve_policy(policy_valkey.url, **variables)
        old = good(issuer)
        await policy.admit(old)
        issuer.publish(EC)

        async def is_admitted() -> bool:
            try:
                await policy.admit(good(issuer, EC))
            except grpc.aio.AioRpcError:
                return False
            return True

        await until(is_admitted)
        await refused(policy, old)


async def test_unknown_keys_do_not_have_the_issuer_asked_again_and_again(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        variables = issuers_variables(fields_of(issuer)) | patched(_RETRY_S, 600.0)
        policy = await serve_policy(policy_valkey.url, **variables)
        await policy.admit(good(issuer))
        asked = len(issuer.asked)
        tokens = [RSA.sign(claims_of(issuer.issuer, org="acme"), kid=f"invented-{i}") for i in range(50)]
        await asyncio.gather(*(refused(policy, token) for token in tokens))
        assert len(issuer.asked) == asked


async def test_keys_are_fresh_again_after_a_while_without_any_token(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        variables = issuers_variables(fields_of(issuer)) | {"INFERFLUX_POLICY_OIDC_KEYS_REFRESH_S": "1"}
        policy = await serve_policy(policy_valkey.url, **variables)
        old = good(issuer)
        await policy.admit(old)
        issuer.publish(EC)
        asked = len(issuer.asked)
        await until(_asked(issuer, asked + 2))

        async def is_refused() -> bool:
            try:
                await policy.admit(old)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAUTHENTICATED
            return False

        await until(is_refused)


def _asked(issuer: ScriptedIssuer, n: int) -> Any:
    async def is_so() -> bool:
        return len(issuer.asked) >= n

    return is_so


async def test_while_an_issuer_is_away_and_no_key_is_known_its_tokens_are_unavailable_and_keys_are_not(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    admin = keys.generate()
    async with scripted(RSA) as issuer:
        await issuer.stop()
        variables = issuers_variables(fields_of(issuer)) | {"INFERFLUX_POLICY_BOOTSTRAP_KEY": admin}
        policy = await serve_policy(policy_valkey.url, **variables)
        await unavailable(policy, good(issuer))
        await policy.admit(admin)
        await issuer.start(issuer.port)

        async def is_admitted() -> bool:
            try:
                await policy.admit(good(issuer))
            except grpc.aio.AioRpcError:
                return False
            return True

        await until(is_admitted)


async def test_an_issuer_that_never_answers_holds_up_no_call_for_long(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    admin = keys.generate()
    async with scripted(RSA) as issuer:
        issuer.is_silent = True
        variables = issuers_variables(fields_of(issuer)) | {"INFERFLUX_POLICY_BOOTSTRAP_KEY": admin}
        policy = await serve_policy(policy_valkey.url, **variables)
        started = time.monotonic()
        waiting = [unavailable(policy, good(issuer)) for _ in range(30)]
        await asyncio.gather(*waiting, policy.admit(admin))
        # Less than the HTTP client waits.
        assert time.monotonic() - started < 4.5


async def test_tokens_of_an_issuer_that_never_answers_keep_no_places_from_other_calls(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    """Each of them waiting for a second, one after the other, would take longer than this limit."""
    async with scripted(RSA) as issuer:
        issuer.is_silent = True
        policy = await serve_policy(policy_valkey.url, **issuers_variables(fields_of(issuer)))
        started = time.monotonic()
        for _ in range(20):
            await unavailable(policy, good(issuer))
        assert time.monotonic() - started < 10


async def test_a_new_key_of_an_issuer_that_is_slow_is_unavailable_and_not_wrong(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        variables = issuers_variables(fields_of(issuer)) | patched(_RETRY_S, 0.1)
        policy = await serve_policy(policy_valkey.url, **variables)
        await policy.admit(good(issuer))
        issuer.is_silent = True

        async def is_unavailable() -> bool:
            error = await refusal(policy.admit(good(issuer, EC)))
            return error.code() is grpc.StatusCode.UNAVAILABLE

        await until(is_unavailable)
        await policy.admit(good(issuer))


async def test_keys_that_are_too_old_hold_no_longer(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        variables = issuers_variables(fields_of(issuer)) | {
            "INFERFLUX_POLICY_OIDC_KEYS_REFRESH_S": "1",
            "INFERFLUX_POLICY_OIDC_KEYS_STALE_S": "2",
        }
        policy = await serve_policy(policy_valkey.url, **variables)
        await policy.admit(good(issuer))
        await issuer.stop()

        async def is_unavailable() -> bool:
            try:
                await policy.admit(good(issuer))
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE
            return False

        await until(is_unavailable)


async def test_policy_asks_no_private_address_that_a_setting_does_not_allow(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        fields = fields_of(issuer, keys_at="well-known")
        policy = await serve_policy(policy_valkey.url, **issuers_variables(fields, networks=""))
        await unavailable(policy, good(issuer))
        assert issuer.asked == []


@pytest.mark.parametrize(
    "jwks_uri",
    [
        "http://{host}:{port}/internal",
        "https://{host}:{port}/internal",
        "http://2130706434:{port}/internal",
        "http://user:password@127.0.0.1:{port}/internal",
        "file:///etc/passwd",
        "gopher://127.0.0.2:{port}/",
        "",
        7,
    ],
)
async def test_a_discovery_document_cannot_lead_policy_to_what_is_private(
    serve_policy: StartPolicy, policy_valkey: ServerProcess, jwks_uri: Any
) -> None:
    """The issuer's own address is allowed here, and 127.0.0.2, beside it, is not."""
    internal = ScriptedIssuer(STRANGER)
    listener = await asyncio.start_server(internal._serve, "127.0.0.2", 0)
    port = listener.sockets[0].getsockname()[1]
    internal.documents["/internal"] = {"keys": [STRANGER.jwk()]}
    async with scripted(RSA) as issuer:
        url = jwks_uri.format(host="127.0.0.2", port=port) if isinstance(jwks_uri, str) else jwks_uri
        issuer.documents["/.well-known/openid-configuration"] = {"issuer": issuer.issuer, "jwks_uri": url}
        variables = issuers_variables(fields_of(issuer), networks="127.0.0.1")
        policy = await serve_policy(policy_valkey.url, **variables)
        await unavailable(policy, good(issuer, STRANGER))
        assert issuer.asked
        assert internal.asked == []
    listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}",
        b"not json",
        b"[" * 100_000,
        b"[]",
        b'{"keys": 7}',
        b'{"keys": [' + b" " * (600 << 10) + b"]}",
        b"\xff\xfe\x00",
    ],
)
async def test_an_issuer_that_answers_anything_but_keys_counts_as_away(
    serve_policy: StartPolicy, policy_valkey: ServerProcess, answer: bytes
) -> None:
    async with scripted(RSA) as issuer:
        issuer.documents["/elsewhere"] = {"keys": [RSA.jwk()]}
        issuer.documents["/keys"] = answer
        policy = await serve_policy(policy_valkey.url, **issuers_variables(fields_of(issuer)))
        await unavailable(policy, good(issuer))
        assert "/elsewhere" not in issuer.asked


async def test_a_discovery_document_of_another_issuer_is_not_used(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(RSA) as issuer:
        said = {"issuer": "https://idp.example.com", "jwks_uri": f"{issuer.issuer}/keys"}
        issuer.documents["/.well-known/openid-configuration"] = said
        policy = await serve_policy(policy_valkey.url, **issuers_variables(fields_of(issuer)))
        await unavailable(policy, good(issuer))
        assert "/keys" not in issuer.asked


async def test_one_issuer_cannot_speak_for_another(
    serve_policy: StartPolicy, policy_valkey: ServerProcess
) -> None:
    async with scripted(SigningKey.rsa("same")) as one, scripted(SigningKey.rsa("same")) as other:
        fields = [
            fields_of(one, tenant="one", tenant_claim=None),
            fields_of(other, tenant="other", tenant_claim=None),
        ]
        policy = await serve_policy(policy_valkey.url, **issuers_variables(*fields))
        assert (await policy.admit(good(one))).tenant == "one"
        assert (await policy.admit(good(other))).tenant == "other"
        forged = one.keys[0].sign(claims_of(other.issuer, scope="inference"))
        await refused(policy, forged)
