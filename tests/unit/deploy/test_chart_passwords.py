"""Passwords of the Helm chart are made once: helm asks the cluster, here a server that knows one Secret."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.helm import CLAIM, Manifest, Pod, files_of, helm, needs_helm

pytestmark = needs_helm

PASSWORDS = "r-inferflux-passwords"
RESOURCES = {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
    {"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}]}  # fmt: skip


class Cluster:
    """An API with the Secret of passwords, or without."""

    def __init__(self, folder: Path) -> None:
        self.secret: Manifest | None = None
        self.status = HTTPStatus.OK
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = cluster.answer(self.path.partition("?")[0])
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._config = folder / "kubeconfig"
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [context],
            "current-context": "c",
        }
        self._config.write_text(json.dumps(config))

    def answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        if path == "/api/v1":
            return HTTPStatus.OK, RESOURCES
        if self.status is HTTPStatus.OK and path.endswith(f"/secrets/{PASSWORDS}") and self.secret:
            return HTTPStatus.OK, self.secret
        status = HTTPStatus.NOT_FOUND if self.status is HTTPStatus.OK else self.status
        reason = status.phrase.replace(" ", "")
        return status, {"kind": "Status", "apiVersion": "v1", "reason": reason, "code": int(status)}

    def install(self, **values: Any) -> dict[str, Manifest]:
        """Render the chart, and keep its passwords; its manifests by kind and name."""
        done = helm("template", "r", "--dry-run=server", "--kubeconfig", str(self._config), values=values)
        assert done.returncode == 0, done.stderr
        made = [each for each in yaml.safe_load_all(done.stdout) if each]
        by_name = {f"{each['kind']}/{each['metadata']['name']}": each for each in made}
        self.secret = by_name[f"Secret/{PASSWORDS}"]
        return by_name

    def refusal(self) -> str:
        done = helm("template", "r", "--dry-run=server", "--kubeconfig", str(self._config))
        assert done.returncode != 0
        return done.stderr

    @property
    def passwords(self) -> dict[str, str]:
        assert self.secret is not None
        return files_of(self.secret)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_a_second_rendering_changes_nothing(cluster: Cluster) -> None:
    assert cluster.install() == cluster.install()


def test_a_password_that_was_removed_is_made_anew_and_those_who_need_it_are_replaced(
    cluster: Cluster,
) -> None:
    before, old = cluster.install(), cluster.passwords
    assert cluster.secret is not None
    del cluster.secret["data"]["redis-policy"]
    after, new = cluster.install(), cluster.passwords
    assert {name for name in old if old[name] != new[name]} == {"redis-policy"}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        f"Secret/{PASSWORDS}",
        "Secret/r-inferflux-access-policy",
        "Secret/r-inferflux-access-valkey",
        "Deployment/r-inferflux-policy",
        "StatefulSet/r-inferflux-valkey",
    }
    for name in ("Deployment/r-inferflux-policy", "StatefulSet/r-inferflux-valkey"):
        ours, theirs = Pod(before[name]), Pod(after[name])
        assert ours.spec == theirs.spec
        annotations = [each.made_by["spec"]["template"]["metadata"]["annotations"] for each in (ours, theirs)]
        assert annotations[0] != annotations[1]


def test_more_workers_within_the_bound_replace_no_other_pod(cluster: Cluster) -> None:
    before = cluster.install()
    after = cluster.install(pools={"default": {"replicas": 8}})
    assert {name for name in before if before[name] != after[name]} == {
        "StatefulSet/r-inferflux-worker-default"
    }
    ours, theirs = (Pod(each["StatefulSet/r-inferflux-worker-default"]) for each in (before, after))
    assert ours.made_by["spec"]["template"] == theirs.made_by["spec"]["template"]


def test_a_new_pool_has_users_and_others_keep_theirs(cluster: Cluster) -> None:
    before, old = cluster.install(), cluster.passwords
    after, new = cluster.install(pools={"more": CLAIM}), cluster.passwords
    assert {name: new[name] for name in old} == old
    assert {name for name in before if before[name] != after[name]} == {
        f"Secret/{PASSWORDS}",
        "Secret/r-inferflux-access-nats",
        "StatefulSet/r-inferflux-nats",
    }


def test_a_cluster_that_does_not_say_what_it_has_gets_no_new_passwords(cluster: Cluster) -> None:
    cluster.install()
    cluster.status = HTTPStatus.FORBIDDEN
    assert "error calling lookup" in cluster.refusal()
