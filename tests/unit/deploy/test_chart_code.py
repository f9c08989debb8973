"""The Helm chart names only what exists in the code: variables, files, ports, paths, modules, images."""

from __future__ import annotations

import importlib.util
import re
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness.deploy import ROOT
from harness.helm import (
    HAS_HELM,
    SETS,
    Pod,
    environment,
    image_of,
    needs_helm,
    pods,
    rendered,
    secrets,
)

from inferflux.common.process.probe import Probe
from inferflux.common.process.settings import load
from inferflux.gateway.models.splits import read_splits
from inferflux.worker.host.models_config import read_models
from tools.reference.settings import SETTINGS, variables

pytestmark = needs_helm

TIDY_UP_S = 5
CASES = [
    (name, pod.name, container["name"])
    for name in (SETS if HAS_HELM else ())
    for pod in pods(name)
    if pod.component in SETTINGS
    for container in pod.containers
]
"""Containers of services of ours."""
PORTS = {"nats": {4222, 6222, 8222}, "valkey": {6379}, "sentinel": {26379}}


def found(name: str, pod: str, container: str) -> tuple[Pod, dict[str, Any]]:
    (one,) = [each for each in pods(name) if each.name == pod]
    return one, next(each for each in one.containers if each["name"] == container)


@pytest.mark.parametrize(("name", "pod", "container"), CASES)
def test_every_variable_is_one_that_the_service_reads_and_its_value_is_taken(
    name: str, pod: str, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, made = found(name, pod, container)
    service = SETTINGS[one.component]
    given = environment(one, made)
    # What the values of all services have is no question of this one's.
    assert {each.removesuffix("_FILE") for each in given} <= set(variables(service))
    names = [each["name"] for each in made["env"]]
    assert len(set(names)) == len(names)
    for variable, value in given.items():
        if not variable.endswith("_FILE"):
            monkeypatch.setenv(variable, value)
    load(service)


@pytest.mark.parametrize(("name", "pod", "container"), CASES)
def test_every_path_in_a_variable_is_mounted_and_every_file_of_a_secret_is_in_it(
    name: str, pod: str, container: str
) -> None:
    one, made = found(name, pod, container)
    mounts = {mount["mountPath"]: mount for mount in made["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in one.spec["volumes"]}
    there = secrets(name)
    for variable, value in environment(one, made).items():
        path = PurePosixPath(value)
        if not path.is_absolute():
            continue
        places = [place for place in (path, *path.parents) if str(place) in mounts]
        assert places, f"{variable}: {value}"
        if not value.startswith("/access/"):
            continue
        mount = mounts[str(places[0])]
        wanted = mount.get("subPath") or mount.get("subPathExpr") or str(path.relative_to(places[0]))
        wanted = wanted.replace("$(POD_NAME)", f"{one.name}-0")
        sources = [source["secret"] for source in volumes[mount["name"]]["projected"]["sources"]]
        files = {item["path"] for source in sources for item in source.get("items", [])}
        for source in sources:
            files |= set(there.get(source["name"].removeprefix("r-inferflux-"), ()))
        assert wanted in files or name == "users of their own", f"{variable}: {value}"


def test_what_an_operator_says_comes_before_what_the_chart_does() -> None:
    (gateway,) = [pod for pod in pods("everything") if pod.component == "gateway"]
    given = environment(gateway, gateway.container)
    assert given["INFERFLUX_GATEWAY_MAX_STREAMS"] == "4096"
    assert given["INFERFLUX_LOG_LEVEL"] == "debug"
    assert given["INFERFLUX_AUDIT_KEY_FILE"] == "/secrets/INFERFLUX_AUDIT_KEY"


@pytest.mark.parametrize("name", SETS)
def test_a_container_has_the_ports_that_its_process_listens_on(name: str) -> None:
    for pod in pods(name):
        ports = {each["containerPort"] for each in pod.container["ports"]}
        if pod.component not in SETTINGS:
            assert ports == PORTS[pod.component]
            continue
        given = environment(pod, pod.container)
        listened = {int(v.rpartition(":")[2]) for k, v in given.items() if k.endswith("_LISTEN") and v}
        assert ports == listened
    listens = re.findall(r'"0\.0\.0\.0:(\d+)"', (ROOT / "deploy/nats/nats.conf").read_text())
    assert {int(port) for port in listens} <= PORTS["nats"]


@pytest.mark.parametrize("name", SETS)
def test_a_service_leads_to_ports_that_its_pods_have(name: str) -> None:
    for service in (each for each in rendered(name) if each["kind"] == "Service"):
        (component,) = {p.component for p in pods(name) if p.is_chosen_by(service["spec"]["selector"])}
        containers = [pod.container for pod in pods(name) if pod.component == component]
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            numbers = {each["name"]: each["containerPort"] for each in containers[0]["ports"]}
            # A worker that fetches KV state over NATS has no port for it.
            assert numbers.get(target, target) == port["port"]
            assert port["port"] in numbers.values() or port["name"] == "kv"


@pytest.mark.parametrize("name", SETS)
def test_a_probe_asks_for_a_path_that_there_is_at_a_port_that_there_is(name: str) -> None:
    probe = Probe("127.0.0.1:0", role="gateway")
    try:
        for pod in pods(name):
            ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = pod.container[kind]
                if pod.component in SETTINGS and "httpGet" in asked:
                    assert asked["httpGet"]["port"] == "metrics"
                    assert probe.answer(asked["httpGet"]["path"], "")[0] != HTTPStatus.NOT_FOUND
                elif "grpc" in asked:
                    assert asked["grpc"]["port"] in ports.values()
                elif "httpGet" in asked:
                    assert ports[asked["httpGet"]["port"]] == 8222
                else:
                    assert f"-p {next(iter(ports.values()))} " in asked["exec"]["command"][2]
            if pod.component in SETTINGS:
                # Whether it is killed is no question of what it waits for.
                for kind in ("startupProbe", "livenessProbe"):
                    assert pod.container[kind]["httpGet"]["path"] == "/livez"
    finally:
        probe.close()


@pytest.mark.parametrize("name", SETS)
def test_a_pod_gets_time_to_drain_before_it_is_killed(name: str) -> None:
    for pod in pods(name):
        if pod.component not in SETTINGS:
            continue
        pause_s = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain_s = int(environment(pod, pod.container)["INFERFLUX_DRAIN_LIMIT_S"])
        assert pod.spec["terminationGracePeriodSeconds"] > pause_s + drain_s + TIDY_UP_S
        # Those who are called through a Service end when it has left them out.
        assert (pause_s > 0) is (pod.component in {"gateway", "policy"})


@pytest.mark.parametrize("name", SETS)
def test_an_image_is_one_that_the_repository_builds_and_runs_what_it_would(name: str) -> None:
    for pod in pods(name):
        for container in pod.containers:
            image = container["image"].rpartition(":")[0]
            if image == "valkey/valkey":
                continue
            assert image.rpartition("/")[2] == pod.component
            assert image_of(pod.component).user == "10001:10001"
            command = container.get("command", image_of(pod.component).command)
            if pod.component in SETTINGS:
                assert command[:2] == ["python", "-m"]
                assert importlib.util.find_spec(command[2]) is not None
        if pod.component == "nats":
            config = pod.container["args"][1]
            assert (["deploy/nats/cluster.conf"], config) in image_of("nats").copies


def test_the_variables_of_a_pulled_model_are_files_that_the_container_before_leaves() -> None:
    (worker,) = [pod for pod in pods("default") if pod.component == "worker"]
    (init,) = worker.spec["initContainers"]
    source = Path(importlib.util.find_spec(init["command"][2]).origin).read_text()  # type: ignore[union-attr, arg-type]
    folder = init["command"][4]
    given = environment(worker, worker.container)
    paths = [given[f"INFERFLUX_WORKER_{kind}_PATH_FILE"] for kind in ("MODEL", "MMPROJ")]
    assert paths == [f"{folder}/model.path", f"{folder}/mmproj.path"]
    assert '("model.path", "mmproj.path")' in source


def test_files_of_models_and_aliases_can_be_read(tmp_path: Path) -> None:
    maps = {
        each["metadata"]["name"]: each["data"]
        for each in rendered("everything")
        if each["kind"] == "ConfigMap" and "data" in each
    }
    for name, data in maps.items():
        for file, text in data.items():
            (tmp_path / f"{name}-{file}").write_text(text)
    assert read_splits(tmp_path / "r-inferflux-gateway-inferflux.yaml").is_alias("either")
    ((path, wish),) = read_models(tmp_path / "r-inferflux-worker-own-inferflux.yaml")
    assert path == Path("/models/b.gguf")
    assert (wish.slots, wish.kv_bytes) == (8, 1 << 30)


@pytest.mark.parametrize("name", SETS)
def test_urls_and_addresses_name_pods_or_services_that_listen_there(name: str) -> None:
    made = {each["metadata"]["name"]: each["spec"] for each in rendered(name) if each["kind"] == "Service"}
    sizes = {pod.name: pod.made_by["spec"]["replicas"] for pod in pods(name)}
    urls = [
        url
        for files in secrets(name).values()
        for file, text in files.items()
        if file.endswith(".url")
        for url in re.sub(r"\+sentinel", "", text).split(",")
    ]
    places = [urlsplit(url if "//" in url else f"//{url}") for url in urls]
    for pod in pods(name):
        if pod.component == "gateway":
            address = environment(pod, pod.container)["INFERFLUX_POLICY_ADDRESS"]
            places.append(urlsplit(f"//{address}"))
    for place in places:
        host, _, service = (place.hostname or "").rpartition(".")
        assert place.port in {port["port"] for port in made[service]["ports"]}
        if host:
            stateful, _, number = host.rpartition("-")
            assert int(number) < sizes[stateful]
