"""The Helm chart as helm renders it: manifests that Kubernetes takes, checked values, hardened pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.deploy import ROOT
from harness.helm import (
    ASKED,
    CHART,
    CLAIM,
    FILES,
    SETS,
    Pod,
    faults,
    helm,
    needs_helm,
    notes,
    pods,
    rendered,
)

from inferflux.common.contract.messages.hosts import LONGEST_HOST_ID
from inferflux.common.contract.subjects import is_safe_token

pytestmark = needs_helm

LONG = "a-release-whose-name-is-as-long-as-helm-lets-it-be-53"
OURS = {"gateway", "policy", "scheduler", "worker"}


def refusal(values: dict[str, Any]) -> str:
    done = helm("template", "r", values=values)
    assert done.returncode != 0
    assert not done.stdout
    return done.stderr


@pytest.mark.parametrize("name", SETS)
def test_helm_has_nothing_to_say_of_it(name: str) -> None:
    done = helm("lint", "--strict", values=ASKED.get(name), files=FILES.get(name, ()))
    assert done.returncode == 0, done.stdout
    assert "[ERROR]" not in done.stdout
    assert "[WARNING]" not in done.stdout


def test_every_file_of_values_is_among_those_that_are_tried() -> None:
    there = {path.name.removesuffix("-values.yaml") for path in CHART.glob("*-values.yaml")}
    assert there == {name for names in FILES.values() for name in names}


@pytest.mark.parametrize("version", ["1.30.0", "1.37.0"])
@pytest.mark.parametrize("name", SETS)
def test_the_api_takes_each_manifest(name: str, version: str) -> None:
    assert [each for manifest in rendered(name) for each in faults(manifest, version)] == []


def test_a_manifest_with_an_unknown_or_wrong_field_would_be_found() -> None:
    (service, *_) = [each for each in rendered("default") if each["kind"] == "Service"]
    (route,) = [each for each in rendered("everything") if each["kind"] == "HTTPRoute"]
    for manifest in (service, route):
        assert [*faults(manifest | {"spec": manifest["spec"] | {"unknown": 1}}, "1.37.0")]
    assert [*faults(service | {"spec": service["spec"] | {"ports": "all"}}, "1.37.0")]


@pytest.mark.parametrize("name", SETS)
def test_no_manifest_is_there_twice_and_all_are_in_the_releases_namespace(name: str) -> None:
    keys = [(each["kind"], each["metadata"]["name"]) for each in rendered(name)]
    assert len(set(keys)) == len(keys)
    extra = len(ASKED.get(name, {}).get("extraObjects", []))
    places = [each["metadata"].get("namespace") for each in rendered(name)]
    assert places.count("default") == len(places) - extra


# The place that the refusal has to name, and what is wrong there.
HOSTILE: dict[str, dict[str, Any]] = {
    "/gateway/replicas": {"gateway": {"replicas": "two"}},
    "/scheduler/replicas": {"scheduler": {"replicas": 0}},
    "'nosuch' not allowed": {"nosuch": 1},
    "'replicaCount' not allowed": {"gateway": {"replicaCount": 3}},
    "/gateway/env/INFERFLUX_X": {"gateway": {"env": {"INFERFLUX_X": 2147483648}}},
    "/policy/env": {"policy": {"env": {"PATH": "/tmp"}}},  # noqa: S108
    "/policy/secrets/INFERFLUX_AUDIT_KEY": {"policy": {"secrets": {"INFERFLUX_AUDIT_KEY": {"name": "a"}}}},
    "/nameOverride": {"nameOverride": "x\n  injected: true"},
    "/fullnameOverride": {"fullnameOverride": "Upper"},
    "/image/prefix": {"image": {"prefix": 'x"\n          command: [sh]'}},
    "/image/tag": {"image": {"tag": "a b"}},
    "/image/pullSecrets/0": {"image": {"pullSecrets": ["a: {b: c}"]}},
    "/gateway/image": {"gateway": {"image": "x\nprivileged: true"}},
    "/gateway/clientTlsSecret": {"gateway": {"clientTlsSecret": "a}, hostPath: {path: /"}},
    "/gateway/ingress/host": {"gateway": {"ingress": {"host": "a\nb"}}},
    "/gateway/httpRoute/parentRefs": {"gateway": {"httpRoute": {"enabled": True}}},
    "/gateway/priorityClassName": {"gateway": {"priorityClassName": "x\nhostNetwork: true"}},
    "/pools": {"pools": {"default": None}},
    "/pools: 'Two Words' not allowed": {"pools": {"Two Words": CLAIM}},
    "/pools/a/role": {"pools": {"a": CLAIM | {"role": "both"}}},
    "/pools/a/shmSize": {"pools": {"a": CLAIM | {"shmSize": "1G}\nhostPath: {path: /"}}},
    "/pools/a/gpu/count": {"pools": {"a": CLAIM | {"gpu": {"count": "all"}}}},
    "/pools/a/gpu/resource": {"pools": {"a": CLAIM | {"gpu": {"resource": "x y"}}}},
    "/pools/a/model/path": {"pools": {"a": {"model": {"existingClaim": "c", "path": "../../etc/passwd"}}}},
    "/pools/a/model/source": {"pools": {"a": {"model": {"source": "/etc/passwd"}}}},
    "/pools/a/runtimeClassName": {"pools": {"a": CLAIM | {"runtimeClassName": "a b"}}},
    "/nats/replicas": {"nats": {"replicas": 2}},
    "/nats/tokenTenants/0": {"nats": {"tokenTenants": ['a"}, {user: "root"']}},
    "/nats/disk/size": {"nats": {"disk": {"size": "much"}}},
    "/valkey/image": {"valkey": {"image": "x; rm -rf /"}},
    "/tls/certManager/issuerRef": {"tls": {"certManager": {"enabled": True}}},
    "/networkPolicy/clients/0": {"networkPolicy": {"clients": [{}]}},
    "/networkPolicy/monitoring/0": {"networkPolicy": {"monitoring": [{"cidr": "0.0.0.0/0"}]}},
    "/topologySpread/keys/0": {"topologySpread": {"keys": ["a: b"]}},
    "/podMonitor/interval": {"podMonitor": {"interval": "often"}},
    "/extraObjects": {"extraObjects": "kind: Pod"},
}


@pytest.mark.parametrize("place", HOSTILE)
def test_values_that_cannot_be_are_refused_by_the_name_of_their_field(place: str) -> None:
    path, _, what = place.partition(": ")
    said = refusal(HOSTILE[place])
    assert path in said, said
    assert what in said


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"pools": {"a": {}}}, "pools.a.model: name a source, or an existingClaim and a path below it"),
        ({"pools": {"a": {"model": {"existingClaim": "c"}}}}, "pools.a.model: name a source"),
        (
            {"pools": {"a": {"model": {"existingClaim": "c", "source": "hf:a/b"}}}},
            "pools.a.model: either source or existingClaim",
        ),
        ({"nats": {"enabled": False}}, "nats.external.urlSecret"),
        ({"valkey": {"enabled": False}}, "valkey.external.urlSecret"),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused(values: dict[str, Any], what: str) -> None:
    assert what in refusal(values)


def test_texts_of_an_operator_stay_texts() -> None:
    text = "a\"b'c: {d} # $(E)\n---\nkind: Pod"
    done = helm("template", "r", values={"gateway": {"env": {"INFERFLUX_LOG_LEVEL": text}}})
    manifests = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert len(manifests) == len(rendered("default"))
    (gateway,) = [Pod(each) for each in manifests if each["metadata"]["name"] == "r-inferflux-gateway" and
                  each["kind"] == "Deployment"]  # fmt: skip
    assert {"name": "INFERFLUX_LOG_LEVEL", "value": text} in gateway.container["env"]


@pytest.mark.parametrize("name", SETS)
def test_names_fit_kubernetes_and_those_of_workers_fit_nats(name: str) -> None:
    for manifest in rendered(name, LONG):
        assert len(manifest["metadata"]["name"]) <= 63
    for pod in pods(name, LONG):
        # Beside the name, a revision and a number have to fit a label.
        assert len(pod.name) <= 52
        if pod.component == "worker":
            worker_id = f"{pod.name}-1023"
            assert is_safe_token(worker_id)
            assert len(worker_id) <= LONGEST_HOST_ID


@pytest.mark.parametrize("name", SETS)
def test_a_pod_may_do_little(name: str) -> None:
    made = pods(name)
    assert {pod.component for pod in made} >= OURS
    for pod in made:
        spec = pod.spec
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]
    kinds = {each["kind"] for each in rendered(name)}
    assert not {kind for kind in kinds if "Role" in kind}
    for account in (each for each in rendered(name) if each["kind"] == "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", SETS)
def test_what_a_manifest_names_is_there_or_is_the_operators(name: str) -> None:
    made = rendered(name)
    there = {(each["kind"], each["metadata"]["name"]) for each in made}
    theirs = {"theirs", "public", "models", "nats-urls", "redis-urls", "x", "pull"}
    if name == "users of their own":
        theirs |= set(re.findall(r"r-inferflux-access-[\w-]+", str(made)))
    if name == "everything":
        theirs |= {each["spec"]["secretName"] for each in made if each["kind"] == "Certificate"}
    for pod in pods(name):
        assert ("ServiceAccount", pod.spec["serviceAccountName"]) in there
        named = set(re.findall(r"'(?:secret|config)(?:Map)?': \{'name': '([^']+)'", str(pod.spec)))
        named |= set(re.findall(r"'(?:secretName|claimName)': '([^']+)'", str(pod.spec)))
        assert {each for each in named if not {("Secret", each), ("ConfigMap", each)} & there} <= theirs
        claims = {claim["metadata"]["name"] for claim in pod.made_by["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])} | claims
        mounted = {mount["name"] for each in pod.containers for mount in each["volumeMounts"]}
        assert mounted == volumes, pod.name
        if pod.made_by["kind"] == "StatefulSet":
            assert ("Service", pod.made_by["spec"]["serviceName"]) in there
    for each in made:
        if each["kind"] in {"Ingress", "HTTPRoute"}:
            assert ("Service", "r-inferflux-gateway") in there
            assert "r-inferflux-gateway" in str(each["spec"]["rules"])


@pytest.mark.parametrize("name", SETS)
def test_every_selector_chooses_pods_and_every_pod_may_be_evicted_one_at_a_time(name: str) -> None:
    made = pods(name)
    budgets = []
    for each in rendered(name):
        spec = each.get("spec", {})
        selector = {"Service": spec.get("selector"), "NetworkPolicy": spec.get("podSelector")}.get(
            each["kind"], spec.get("selector")
        )
        if each["kind"] in {"Service", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor"}:
            labels = selector.get("matchLabels", selector)
            assert any(pod.is_chosen_by(labels) for pod in made), each["metadata"]["name"]
        if each["kind"] == "PodDisruptionBudget":
            assert spec["maxUnavailable"] == 1
            budgets.append(spec["selector"]["matchLabels"])
    wanted = 0 if name == "nothing by choice" else 1
    for pod in made:
        assert sum(pod.is_chosen_by(labels) for labels in budgets) == wanted, pod.name
        assert pod.is_chosen_by(pod.made_by["spec"]["selector"]["matchLabels"])
        for other in made:
            assert other is pod or not other.is_chosen_by(pod.made_by["spec"]["selector"]["matchLabels"])
        for spread in pod.spec.get("topologySpreadConstraints", []):
            assert pod.is_chosen_by(spread["labelSelector"]["matchLabels"])


def test_pools_of_roles_have_sizes_of_their_own_and_schedulers_know_them() -> None:
    made = {pod.labels.get("inferflux.io/pool", pod.component): pod for pod in pods("prefill and decode")}
    assert {"prefill", "decode"} <= set(made)
    assert "default" not in made
    sizes = [made[role].made_by["spec"]["replicas"] for role in ("prefill", "decode")]
    assert sizes == [1, 2]
    told = {each["name"]: each.get("value") for each in made["scheduler"].container["env"]}
    assert [told[f"INFERFLUX_{role}_POOL_SIZE"] for role in ("PREFILL", "DECODE")] == ["1", "2"]


def test_a_pool_on_gpus_asks_for_them() -> None:
    (pod,) = [pod for pod in pods("gpu") if pod.component == "worker"]
    assert pod.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod.spec["runtimeClassName"] == "nvidia"
    assert pod.spec["tolerations"]
    (init,) = pod.spec["initContainers"]
    assert "nvidia.com/gpu" not in init["resources"]["limits"]
    (shm,) = [volume for volume in pod.spec["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}


@pytest.mark.parametrize("name", SETS)
def test_the_notes_say_where_the_key_is_and_no_secret(name: str, tmp_path: Path) -> None:
    text = notes(tmp_path, name)
    assert ("get secret r-inferflux-access-policy" in text) is (name != "users of their own")
    assert "service/r-inferflux-gateway" in text
    assert not re.search(r"\w{32}", text)


def test_no_pause_before_the_end_is_no_pause() -> None:
    done = helm("template", "r", values={"gateway": {"preStopS": 0}, "policy": {"preStopS": 0}})
    made = [Pod(each) for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Deployment"]
    assert len(made) == 3
    assert not any("lifecycle" in pod.container for pod in made)


def test_its_version_is_that_of_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == (ROOT / "VERSION").read_text().strip()
