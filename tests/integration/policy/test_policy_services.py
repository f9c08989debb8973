"""Services prove themselves to policy: others cannot admit, reserve, renew or settle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from harness.audit import lines_in
from harness.certificates import Certificates
from harness.policy import SERVICE_KEY, AsService, bearer, refusal, until

from inferflux.common.calls import grpc_client, grpc_metadata
from inferflux.common.contract.callers.policy_methods import FOR_SERVICES
from inferflux.common.contract.errors import Internal, InvalidArgument, from_rpc, from_status
from inferflux.common.process.tls import ClientTls
from inferflux.policy.decide import keys
from inferflux.policy.storage.table import KEY, Row
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, guardrails_pb2, policy_pb2, policy_pb2_grpc

from .conftest import Running, StartPolicy
from .storages import write_rows

KEY_ID = "key_" + "0" * 16


def requests(credential: str) -> dict[str, Any]:
    names: dict[str, Any] = {
        "request_id": "r-services",
        "attempt_id": "a",
        "tenant": "strangers",
        "key_id": KEY_ID,
    }
    return {
        "Admit": policy_pb2.AdmitRequest(credential=credential, scope="inference", request_id="r"),
        "AdmitMany": policy_pb2.AdmitManyRequest(),
        "Reserve": policy_pb2.ReserveRequest(**names, model="demo", prompt_tokens=1, max_tokens=1),
        "Renew": policy_pb2.RenewRequest(),
        "Settle": policy_pb2.SettleRequest(**names, outcome="stop"),
        "SettleMany": policy_pb2.SettleManyRequest(
            requests=[policy_pb2.SettleRequest(**{**names, "request_id": "r-many"}, outcome="stop")]
        ),
        "GetStreamGuards": guardrails_pb2.GetStreamGuardsRequest(tenant="strangers"),
    }


@pytest.mark.parametrize("method", sorted(FOR_SERVICES))
async def test_what_services_call_strangers_and_administrators_cannot(running: Running, method: str) -> None:
    request = requests(running.admin)[method]
    usage = UsageStore(running.redis, timeout_s=5)
    before = await usage.usage("strangers")
    call = getattr(running.policy.stranger, method)
    for metadata, reason in (
        ((), "NO_SERVICE_KEY"),
        (bearer(running.admin), "NO_SERVICE_KEY"),
        ((("x-inferflux-service-key", "a-service-key-of-others"),), "WRONG_SERVICE_KEY"),
        ((("x-inferflux-service-key", SERVICE_KEY[:-1]),), "WRONG_SERVICE_KEY"),
    ):
        error = await refusal(call(request, metadata=metadata, timeout=10))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert from_rpc(error).reason == reason
    assert await usage.usage("strangers") == before
    await getattr(running.policy.stub, method)(request, timeout=10)


async def test_each_of_many_calls_gets_the_answer_that_it_would_get_alone(running: Running) -> None:
    key = (await running.policy.create_key(running.admin, tenant="many")).secret
    calls = [
        policy_pb2.AdmitRequest(credential=credential, scope=scope, request_id=f"r{i}")
        for i, (credential, scope) in enumerate(
            (
                (key, "inference"),
                ("ifx_" + "A" * 43, "inference"),
                (key, "admin"),
                (key, "no scope"),
                ("", "admin"),
            )
        )
    ]
    many = await running.policy.stub.AdmitMany(policy_pb2.AdmitManyRequest(requests=calls), timeout=10)
    for call, answer in zip(calls, many.answers, strict=True):
        if answer.HasField("admitted"):
            assert answer.admitted == await running.policy.stub.Admit(call, timeout=10)
            continue
        alone = from_rpc(await refusal(running.policy.stub.Admit(call, timeout=10)))
        together = from_status(answer.refused)
        assert (type(together), str(together), together.reason) == (type(alone), str(alone), alone.reason)
        assert together.headers == alone.headers
    assert [answer.WhichOneof("answer") for answer in many.answers] == ["admitted"] + ["refused"] * 4


async def test_a_refusal_says_whose_key_it_was_to_the_service_that_asks(running: Running) -> None:
    made = [await running.policy.create_key(running.admin, tenant=f"named-{i}") for i in range(2)]
    for i in range(2):
        await running.policy.limit(running.admin, f"tenant:named-{i}", requests_per_minute=1)
    calls = [
        policy_pb2.AdmitRequest(credential=key.secret, scope=scope, request_id="r", is_counted=True)
        for key in made
        for scope in ("inference", "inference", "admin")
    ]
    many = await running.policy.stub.AdmitMany(policy_pb2.AdmitManyRequest(requests=calls), timeout=10)
    refused = [from_status(answer.refused) for answer in many.answers if answer.HasField("refused")]
    assert [
        (each.reason, each.headers[grpc_metadata.KEY_ID], each.headers[grpc_metadata.TENANT])
        for each in refused
    ] == [
        (reason, key.api_key.key_id, key.api_key.tenant)
        for key in made
        for reason in ("RATE_LIMITED", "MISSING_SCOPE")
    ]


async def is_damaged(running: Running, secret: str) -> bool:
    error = await refusal(running.policy.admit(secret))
    return error.code() is grpc.StatusCode.INTERNAL


async def test_a_defect_at_one_of_many_calls_ends_that_one_alone(running: Running) -> None:
    good = (await running.policy.create_key(running.admin, tenant="many")).secret
    bad = keys.generate()
    # No policy process writes a key that lacks its tenant.
    row = Row(KEY, keys.digest_of(bad))
    await write_rows(running.url, {row: '{"name": "damaged"}'})
    await until(lambda: is_damaged(running, bad))
    calls = [
        policy_pb2.AdmitRequest(credential=credential, scope="inference", request_id=f"r{i}")
        for i, credential in enumerate((good, bad, good))
    ]
    many = await running.policy.stub.AdmitMany(policy_pb2.AdmitManyRequest(requests=calls), timeout=10)
    await write_rows(running.url, {row: None})
    first, damaged, last = many.answers
    assert (first.admitted.tenant, last.admitted.tenant) == ("many", "many")
    refused = from_status(damaged.refused)
    assert isinstance(refused, Internal)
    assert "KeyError" not in refused.message


async def test_requests_that_are_settled_together_count_once_each(running: Running) -> None:
    """Also where one comes twice in a question, and again in a later one; one that is refused costs the
    others nothing."""

    def ended(request_id: str, tokens: int, outcome: str = "stop") -> policy_pb2.SettleRequest:
        usage = generation_pb2.Usage(prompt_tokens=tokens)
        return policy_pb2.SettleRequest(
            request_id=request_id,
            attempt_id="a",
            tenant="settled-together",
            key_id=KEY_ID,
            outcome=outcome,
            usage=usage,
        )

    requests = [ended("r1", 3), ended("r2", 5), ended("r3", 7, outcome="No Outcome"), ended("r1", 3)]
    for _ in range(2):
        many = await running.policy.stub.SettleMany(
            policy_pb2.SettleManyRequest(requests=requests), timeout=10
        )
        assert [each.WhichOneof("answer") for each in many.answers] == [
            "settled", "settled", "refused", "settled",
        ]  # fmt: skip
        alone = from_rpc(await refusal(running.policy.stub.Settle(requests[2], timeout=10)))
        together = from_status(many.answers[2].refused)
        assert (type(together), str(together)) == (type(alone), str(alone))
    used = await UsageStore(running.redis, timeout_s=5).usage("settled-together")
    assert (used["requests"], used["prompt_tokens"]) == (2, 8)


async def test_too_many_calls_at_once_are_refused_by_name(running: Running) -> None:
    call = policy_pb2.AdmitRequest(credential=running.admin, scope="inference", request_id="r")
    many = policy_pb2.AdmitManyRequest(requests=[call] * 65)
    error = from_rpc(await refusal(running.policy.stub.AdmitMany(many, timeout=10)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "requests"
    ended = policy_pb2.SettleManyRequest(requests=[policy_pb2.SettleRequest()] * 65)
    error = from_rpc(await refusal(running.policy.stub.SettleMany(ended, timeout=10)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "requests"


async def test_what_services_call_is_audited_where_it_is_refused(
    running: Running, start_policy: StartPolicy, tmp_path: Path
) -> None:
    """Gateways write a line for each request: policy's would say the same again."""
    policy = await start_policy(running.policy.environment["INFERFLUX_REDIS_URL"])
    await policy.stub.Renew(policy_pb2.RenewRequest(), metadata=(("x-request-id", "of-a-service"),))
    await refusal(
        policy.stranger.Renew(policy_pb2.RenewRequest(), metadata=(("x-request-id", "of-a-stranger"),))
    )
    assert policy.stop() == 0
    lines = lines_in(tmp_path / "audit")
    found = {line["request_id"]: (line["decision"], line["reason"]) for line in lines}
    assert found == {"of-a-stranger": ("refused", "NO_SERVICE_KEY")}


@pytest.mark.parametrize("credential", [b"\xff", b"a" * 1_000_000])
async def test_odd_service_keys_are_refused(running: Running, credential: bytes) -> None:
    metadata = (("x-inferflux-service-key-bin", credential), ("x-inferflux-service-key", "b" * 300))
    with pytest.raises(grpc.RpcError):
        await running.policy.stranger.Admit(requests(running.admin)["Admit"], metadata=metadata, timeout=10)
    await running.policy.admit(running.admin)


async def test_a_service_key_opens_nothing_of_administrators(running: Running) -> None:
    request = policy_pb2.ListApiKeysRequest()
    error = await refusal(running.policy.stub.ListApiKeys(request, timeout=10))
    assert from_rpc(error).reason == "NO_CREDENTIAL"


async def test_keys_are_changed_one_service_after_another(
    running: Running, start_policy: StartPolicy
) -> None:
    url = running.policy.environment["INFERFLUX_REDIS_URL"]
    policy = await start_policy(url, INFERFLUX_SERVICE_KEY=f"the-key-that-is-new, {SERVICE_KEY}")
    await policy.admit(running.admin)
    await AsService(policy.stranger, "the-key-that-is-new").Renew(policy_pb2.RenewRequest(), timeout=10)


@pytest.mark.parametrize("key", ["", "short"])
async def test_policy_does_not_start_without_a_service_key(
    running: Running, start_policy: StartPolicy, key: str
) -> None:
    url = running.policy.environment["INFERFLUX_REDIS_URL"]
    policy = await start_policy(url, wait=False, INFERFLUX_SERVICE_KEY=key)
    assert policy.process is not None
    assert policy.process.wait(15) == 2
    assert "INFERFLUX_SERVICE_KEY" in policy.log_path.read_text().splitlines()[-1]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.made(tmp_path / "certificates")


def mutual_tls(certificates: Certificates) -> dict[str, str]:
    files = certificates.server("policy", is_mutual=True)
    return {
        "INFERFLUX_TLS_CERT": str(files.cert),
        "INFERFLUX_TLS_KEY": str(files.key),
        "INFERFLUX_TLS_CLIENT_CA": str(files.ca),
        "INFERFLUX_SERVICE_KEY": "",
    }


@pytest.mark.parametrize("method", sorted(FOR_SERVICES))
async def test_with_mutual_tls_the_certificate_of_a_gateway_proves_it(
    running: Running, start_policy: StartPolicy, certificates: Certificates, method: str
) -> None:
    policy = await start_policy(
        running.policy.environment["INFERFLUX_REDIS_URL"], wait=True, **mutual_tls(certificates)
    )
    request = requests(running.admin)[method]

    def channel(name: str) -> grpc.aio.Channel:
        tls = ClientTls(certificates.client(name))
        return grpc_client.renewed_channel(f"127.0.0.1:{policy.port}", tls)

    gateway, client = channel("gateway"), channel("client")
    await getattr(policy_pb2_grpc.PolicyServiceStub(gateway), method)(request, timeout=10)
    call = getattr(policy_pb2_grpc.PolicyServiceStub(client), method)
    for metadata, reason in (
        ((), "NO_SERVICE_KEY"),
        ((("x-inferflux-service-key", SERVICE_KEY),), "WRONG_SERVICE_KEY"),
    ):
        assert from_rpc(await refusal(call(request, metadata=metadata, timeout=10))).reason == reason
    await gateway.close()
    await client.close()


async def test_policy_needs_a_service_key_where_no_certificate_is_one(
    running: Running, start_policy: StartPolicy, certificates: Certificates
) -> None:
    url = running.policy.environment["INFERFLUX_REDIS_URL"]
    variables = mutual_tls(certificates) | {"INFERFLUX_POLICY_SERVICE_NAMES": ""}
    policy = await start_policy(url, wait=False, **variables)
    assert policy.process is not None
    assert policy.process.wait(15) == 2
    assert "INFERFLUX_SERVICE_KEY" in policy.log_path.read_text().splitlines()[-1]
