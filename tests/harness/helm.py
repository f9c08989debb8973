"""The Helm chart as the real helm renders it, where `make chart-tools` has installed that."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from .deploy import ROOT, Stage, read_dockerfile

CHART = ROOT / "deploy/helm/inferflux"
_TOOLS = ROOT / ".tools"
_HELM = shutil.which("helm", path=_TOOLS / "bin")
HAS_HELM = _HELM is not None
needs_helm = pytest.mark.skipif(not HAS_HELM, reason="helm is not installed: say `make chart-tools`")

Manifest = dict[str, Any]

CLAIM = {"model": {"source": "", "existingClaim": "models", "path": "chat/chat.gguf", "name": "chat"}}
PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
SECRET = {"name": "theirs", "key": "one"}
# What an operator may ask for beside the files of values; each is a set of values.
ASKED: dict[str, dict[str, Any]] = {
    "everything": {
        "image": {"prefix": "r.example.com:5000/inferflux", "tag": "1.2.3", "pullSecrets": ["pull"]},
        "env": {"INFERFLUX_LOG_LEVEL": "debug"},
        "drainLimitS": 90,
        "gateway": {
            "env": {"INFERFLUX_GATEWAY_MAX_STREAMS": "4096"},
            "secrets": {"INFERFLUX_AUDIT_KEY": SECRET},
            "aliases": {"either": {"a": 90, "b": 10}, "sticky": "key"},
            "clientTlsSecret": "public",
            "preStopS": 20,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "priorityClassName": "high",
            "nodeSelector": {"a": "b"},
            "podAnnotations": {"a/b": "c"},
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            "ingress": {"enabled": True, "className": "nginx", "host": "llm.example.com", "tlsSecret": "x"},
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "gw"}], "hostnames": ["llm.example.com"]},
        },
        "policy": {"cedar": {"policies": {"a.cedar": "permit(principal, action, resource);"}}},
        "workers": {"pool": {"kvDisk": {"size": "10Gi", "storageClass": "fast"}}},
        "pools": {
            "default": {"replicas": 12, "model": {"size": "5Gi"}, "secrets": {"INFERFLUX_HF_TOKEN": SECRET}},
            "own": CLAIM | {"models": [{"path": "/models/b.gguf", "slots": 8, "kv_bytes": 1 << 30}]},
        },
        "nats": {"tokenTenants": ["default", "acme"]},
        "tls": {"enabled": True, "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
        "networkPolicy": {
            "clients": PEER,
            "administrators": PEER,
            "tokenReaders": PEER,
            "monitoring": PEER,
            "extraEgress": [{"ports": [{"port": 4317}]}],
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}},
            '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}',
        ],
    },
    "servers elsewhere": {
        "nats": {"enabled": False, "external": {"urlSecret": "nats-urls"}},
        "valkey": {"enabled": False, "external": {"urlSecret": "redis-urls"}},
        "networkPolicy": {"extraEgress": [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}]},
    },
    "users of their own": {"access": {"create": False}, "pools": {"default": CLAIM | {"replicas": 0}}},
    "one user of all workers": {"workers": {"ownUsers": False, "kvTransport": "tcp"}},
    "nothing by choice": {
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "topologySpread": {"keys": []},
    },
}
FILES: dict[str, tuple[str, ...]] = {
    "default": (),
    "minimal": ("minimal",),
    "prefill": ("prefill",),
    "decode": ("decode",),
    "prefill and decode": ("prefill", "decode"),
    "gpu": ("gpu",),
    "minimal with roles": ("minimal", "prefill", "decode"),
}
SETS = [*FILES, *ASKED]


def helm(
    command: str, *words: str, values: object = None, files: tuple[str, ...] = (), chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart, with files of values that lie in it, and values."""
    assert _HELM is not None
    given = [word for name in files for word in ("-f", str(CHART / f"{name}-values.yaml"))]
    call = [_HELM, command, *words, str(chart), *given, "-f", "-"]
    text = json.dumps(values if values is not None else {})
    return subprocess.run(call, input=text, capture_output=True, text=True, check=False, timeout=60)


@cache
def rendered(name: str, release: str = "r") -> list[Manifest]:
    """Manifests of one of `SETS`."""
    done = helm("template", release, values=ASKED.get(name), files=FILES.get(name, ()))
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.load_all(done.stdout, yaml.CSafeLoader) if manifest]


def notes(folder: Path, name: str) -> str:
    """NOTES.txt of one of `SETS`; helm itself shows it where there is a cluster alone.

    Args:
        folder: for a copy of the chart.
    """
    chart = shutil.copytree(CHART, folder / "chart")
    (chart / "templates/NOTES.txt").rename(chart / "NOTES.txt")
    (chart / "templates/notes.yaml").write_text('text: {{ tpl (.Files.Get "NOTES.txt") . | quote }}')
    words = ("r", "--show-only", "templates/notes.yaml")
    done = helm("template", *words, values=ASKED.get(name), files=FILES.get(name, ()), chart=chart)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["text"])


@dataclass(frozen=True)
class Pod:
    """A kind of pods: the manifest that makes them, and what it says of each."""

    made_by: Manifest

    @property
    def name(self) -> str:
        return str(self.made_by["metadata"]["name"])

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.made_by["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.made_by["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        container: dict[str, Any] = self.spec["containers"][0]
        return container

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def is_chosen_by(self, selector: dict[str, str]) -> bool:
        return selector.items() <= self.labels.items()


def pods(name: str, release: str = "r") -> list[Pod]:
    return [Pod(each) for each in rendered(name, release) if each["kind"] in {"Deployment", "StatefulSet"}]


def image_of(component: str) -> Stage:
    """The image of a component, as its Dockerfile makes it."""
    folder = "deploy" if component == "nats" else "services"
    return read_dockerfile(ROOT / folder / component / "Dockerfile")[-1]


def environment(pod: Pod, container: dict[str, Any]) -> dict[str, str]:
    """Variables of a container of the first pod, those of its image among them."""
    given = {each["name"]: each.get("value", "") for each in container["env"]} | {"POD_NAME": f"{pod.name}-0"}
    own = {name: value.replace("$(POD_NAME)", given["POD_NAME"]) for name, value in given.items()}
    image = {n: v for n, v in image_of(pod.component).env.items() if n.startswith("INFERFLUX_")}
    return image | {name: value for name, value in own.items() if name != "POD_NAME"}


def files_of(secret: Manifest) -> dict[str, str]:
    """Files of a Secret."""
    return {name: base64.b64decode(text).decode() for name, text in (secret["data"] or {}).items()}


def secrets(name: str, release: str = "r") -> dict[str, dict[str, str]]:
    """Files of every Secret, by its name without the release's."""
    start = f"{release}-inferflux-"
    made = (each for each in rendered(name, release) if each["kind"] == "Secret")
    return {each["metadata"]["name"].removeprefix(start): files_of(each) for each in made}


def faults(manifest: Manifest, version: str) -> Iterator[str]:
    """Problems that the API's schema of a manifest has with it, unknown fields among them."""
    import kubernetes_validate

    group = manifest["apiVersion"].partition("/")[0]
    definitions = [yaml.safe_load(path.read_text()) for path in (_TOOLS / "crds").glob(f"{group}_*.yaml")]
    kinds = {each["spec"]["names"]["kind"]: each["spec"]["versions"] for each in definitions}
    try:
        if manifest["kind"] not in kinds:
            kubernetes_validate.validate(manifest, version, strict=True)
            return
    except kubernetes_validate.ValidationError as error:
        yield f"{manifest['kind']} {manifest['metadata']['name']}: {error.json_path}: {error.message}"
        return
    asked = manifest["apiVersion"].rpartition("/")[2]
    (schema,) = [each["schema"] for each in kinds[manifest["kind"]] if each["name"] == asked]
    yield from _of_custom(manifest, _closed(schema["openAPIV3Schema"]))


def _of_custom(manifest: Manifest, schema: dict[str, Any]) -> Iterator[str]:
    schema["properties"]["metadata"] = {"type": "object"}
    for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(manifest):
        yield f"{manifest['kind']} {manifest['metadata']['name']}: {error.instance_path}: {error.message}"


def _closed(schema: Any) -> Any:
    """A schema that takes no property that it does not name, as kubectl's strict validation does."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made
