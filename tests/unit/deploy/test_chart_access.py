"""Users, passwords and who may call whom in the Helm chart: as the code makes them for other deployments."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.deploy import ROOT
from harness.helm import SETS, environment, needs_helm, pods, rendered, secrets

from inferflux.cli.stack.servers import nats_command
from inferflux.common.calls.service_key import parse_service_keys
from inferflux.common.contract.callers.api_key import is_well_formed
from inferflux.common.servers.access_files import write_access
from tools.reference.__main__ import of_chart

WITH_SERVERS = [name for name in SETS if name not in {"servers elsewhere", "users of their own"}]
_USER = re.compile(r"^    \{\n.*?^    \}\n", re.MULTILINE | re.DOTALL)


def hosts(kind: str, name: str) -> list[str]:
    (pod,) = [pod for pod in pods(name) if pod.component == kind]
    return [f"{pod.name}-{i}.{pod.name}" for i in range(pod.made_by["spec"]["replicas"])]


def made_by_code(name: str, folder: Path) -> None:
    """What `access_files` makes of the passwords, servers and workers of a release."""
    passwords = secrets(name)["passwords"]
    tenants = [each.removeprefix("nats-tokens-") for each in passwords if each.startswith("nats-tokens-")]
    workers = [each.removeprefix("nats-") for each in passwords if re.fullmatch(r"nats-.*-worker-.*", each)]
    of_nats = {
        each.removeprefix("nats-"): text for each, text in passwords.items() if each.startswith("nats-")
    }
    of_redis = {each.removeprefix("redis-"): text for each, text in passwords.items() if "redis-" in each}
    for kind, known in (
        ("nats", {"worker": "x"} | of_nats),
        ("valkey", of_redis),
        ("sentinel", {"sentinels": of_redis["sentinels"]}),
    ):
        (folder / kind).mkdir()
        (folder / kind / "passwords.json").write_text(json.dumps(known))
    (folder / "policy").mkdir()
    (folder / "policy/service.key").write_text(passwords["service-key"])
    redis = [f"{host}:6379" for host in hosts("valkey", name)]
    sentinels = [f"{host}:26379" for host in hosts("sentinel", name)] if len(redis) > 1 else []
    nats = ",".join(f"{host}:4222" for host in hosts("nats", name))
    write_access(
        folder, nats=nats, redis=",".join(redis), sentinels=sentinels, tenants=tenants, workers=workers
    )


def has_tls(name: str) -> bool:
    return name == "everything"


def without_tls(text: str) -> str:
    """A configuration without what TLS adds to it."""
    text = re.sub(r"^port 0\ntls-port (\d+)$", r"port \1", text, flags=re.MULTILINE)
    text = re.sub(r"^ *tls[ -].*\n", "", text, flags=re.MULTILINE)
    return text.replace("tls://", "nats://").replace("rediss+", "redis+").replace("rediss:", "redis:")


def test_files_of_the_chart_are_those_of_the_code() -> None:
    for path, text in of_chart().items():
        assert path.read_text() == text, "say `make docs`"


@needs_helm
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_users_of_nats_are_those_of_the_code(name: str, tmp_path: Path) -> None:
    made_by_code(name, tmp_path)
    text = secrets(name)["access-nats"]["users.conf"]
    expected = set(_USER.findall((tmp_path / "nats/users.conf").read_text()))
    shared = {block for block in expected if 'user: "worker"' in block}
    blocks = _USER.findall(text)
    assert set(blocks) == (expected if name == "one user of all workers" else expected - shared)
    assert len(blocks) == len(set(blocks))
    assert text == f"authorization {{\n  users: [\n{''.join(blocks)}  ]\n}}\n"


@needs_helm
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_what_servers_and_services_are_given_is_what_the_code_gives_them(name: str, tmp_path: Path) -> None:
    made_by_code(name, tmp_path)
    compared = 0
    for secret, files in secrets(name).items():
        if secret == "passwords":
            continue
        kind = secret.removeprefix("access-")
        for file, text in files.items():
            is_alone = kind == "valkey" and len(hosts("valkey", name)) == 1
            if file in {"users.conf", "cluster.conf", "admin.key"} or (is_alone and file.endswith(".conf")):
                continue
            folder = "worker" if kind.startswith("worker") else kind
            if file.endswith(".nats.url"):
                folder, file = file.removesuffix(".nats.url"), "nats.url"
            expected = (tmp_path / folder / file).read_text()
            assert sorted(without_tls(text).splitlines()) == sorted(expected.splitlines()), f"{secret} {file}"
            compared += 1
    assert compared >= 12
    cluster = without_tls(secrets(name)["access-nats"]["cluster.conf"])
    if len(hosts("nats", name)) > 1:
        lines = {line.strip() for line in cluster.splitlines()}
        assert {line.strip() for line in (tmp_path / "nats/cluster.conf").read_text().splitlines()
                if "#" not in line} <= lines  # fmt: skip
    else:
        assert "cluster" not in cluster


@needs_helm
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_keys_are_such_as_services_take(name: str) -> None:
    made = secrets(name)
    assert is_well_formed(made["access-policy"]["admin.key"])
    assert len(parse_service_keys(made["access-gateway"]["service.key"])) == 1
    passwords = made["passwords"]
    assert all(re.fullmatch(r"(ifx_)?[A-Za-z0-9]{32,43}", text) for text in passwords.values())
    assert len(set(passwords.values())) == len(passwords)


@needs_helm
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_nats_takes_its_configuration(name: str, tmp_path: Path) -> None:
    for source, target in (("nats.conf", "inferflux.conf"), ("cluster.conf", "cluster.conf")):
        (tmp_path / "etc/nats").mkdir(parents=True, exist_ok=True)
        text = (ROOT / f"deploy/nats/{source}").read_text().replace('"/data"', f'"{tmp_path}/data"')
        (tmp_path / "etc/nats" / target).write_text(text)
    (tmp_path / "access").mkdir()
    for file, text in secrets(name)["access-nats"].items():
        # Certificates are read then; what is said of them is held to the server's words elsewhere.
        (tmp_path / "access" / file).write_text(re.sub(r"^ *tls .*\n", "", text, flags=re.MULTILINE))
    binary = nats_command(4222, tmp_path)[0]
    command = [binary, "-t", "-c", str(tmp_path / "etc/nats/cluster.conf")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@needs_helm
def test_a_container_sees_its_own_secrets_alone() -> None:
    for pod in pods("default"):
        named = set(
            re.findall(r"'(?:name|secretName)': '(r-inferflux-(?:access|passwords)[\w-]*)'", str(pod.spec))
        )
        own = pod.component if pod.component != "worker" else "worker-default"
        assert named == {f"r-inferflux-access-{own}"}
        for mount in pod.container["volumeMounts"]:
            if pod.component == "worker" and mount["name"] == "access":
                assert mount.get("subPath") == "redis.url" or mount["subPathExpr"] == "$(POD_NAME).nats.url"


def calls(name: str) -> set[tuple[str, str, int]]:
    """Who calls whom at which port, as components are told."""
    made = set()
    watched = sum(pod.component == "sentinel" for pod in pods(name))
    for pod in pods(name):
        if pod.component in {"gateway", "scheduler", "worker"}:
            made.add((pod.component, "nats", 4222))
        if pod.component in {"gateway", "policy", "scheduler", "worker"}:
            made.add((pod.component, "valkey", 6379))
            made |= {(pod.component, "sentinel", 26379)} if watched else set()
        if pod.component == "gateway":
            made.add(("gateway", "policy", 50052))
        if pod.component == "worker" and environment(pod, pod.container).get("INFERFLUX_KV_LISTEN"):
            made.add(("worker", "worker", 50053))
    if watched:
        made |= {("valkey", "valkey", 6379), ("sentinel", "valkey", 6379), ("sentinel", "sentinel", 26379)}
    made |= {("nats", "nats", 6222)}
    there = {pod.component for pod in pods(name)}
    return {each for each in made if set(each[:2]) <= there}


def opened(name: str, direction: str) -> set[tuple[str, str, int]]:
    """What NetworkPolicies let through within the release: from, to, port."""
    made = set()
    for policy in (each for each in rendered(name) if each["kind"] == "NetworkPolicy"):
        own = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in policy["spec"][direction] or []:
            for peer in rule.get("from" if direction == "ingress" else "to", []):
                labels: dict[str, Any] = peer.get("podSelector", {}).get("matchLabels", {})
                other = labels.get("app.kubernetes.io/component")
                ends = (other, own) if direction == "ingress" else (own, other)
                made |= {(*ends, port["port"]) for port in rule.get("ports", []) if other}
    return made


@needs_helm
@pytest.mark.parametrize("name", [each for each in SETS if each != "nothing by choice"])
def test_the_network_lets_through_what_services_call_and_nothing_else(name: str) -> None:
    # A pool whose state goes over NATS listens for no other worker.
    spare = {("worker", "worker", 50053)}
    assert opened(name, "ingress") - spare == calls(name) - spare
    assert opened(name, "egress") - spare == calls(name) - spare
    assert calls(name) <= opened(name, "ingress")
    chosen = {p["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
              for p in rendered(name) if p["kind"] == "NetworkPolicy"}  # fmt: skip
    assert chosen == {pod.component for pod in pods(name)}


@needs_helm
def test_strangers_reach_the_gateway_alone() -> None:
    for policy in (each for each in rendered("default") if each["kind"] == "NetworkPolicy"):
        own = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in policy["spec"]["ingress"] or []:
            ports = {port["port"] for port in rule["ports"]}
            assert "from" in rule or (own == "gateway" and ports == {50051, 8080})
            assert 9090 not in ports
            assert rule.get("from") != []
        for rule in policy["spec"]["egress"]:
            assert rule["ports"]
            assert rule.get("to") != []
            if "ipBlock" in str(rule):
                assert own in {"gateway", "policy", "worker"}
                assert {port["port"] for port in rule["ports"]} == {443}
    by_choice = str([each for each in rendered("everything") if each["kind"] == "NetworkPolicy"])
    assert by_choice.count("{'a': 'b'}") == 1 + 1 + 1 + 4
