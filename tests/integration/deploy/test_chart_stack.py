"""A release of the Helm chart as processes of this machine, each as its pod would be: a chat is answered."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from harness.chart_release import Release, lay_out
from harness.deploy import ROOT
from harness.helm import environment, needs_helm
from harness.model_paths import DEMO, model_path
from harness.servers import ServerProcess

from inferflux.cli.stack.servers import LOOPBACK, free_port, nats_command, valkey_command

pytestmark = needs_helm

MODEL = {"source": "", "existingClaim": "models", "path": model_path(DEMO).name}
VALUES = {
    "nats": {"replicas": 1},
    "valkey": {"replicas": 1},
    "pools": {"default": {"model": MODEL}},
}


class Stack:
    """The parts of a release, one process of each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        places = {
            name: (LOOPBACK, free_port())
            for name in ("r-inferflux-nats-0", "r-inferflux-valkey-0", "r-inferflux-policy")
        }
        self.release = Release(places, VALUES)
        self.http_port = free_port()
        self._folder, self._places, self._stack = folder, places, stack

    def start(self) -> None:
        self._nats()
        self._valkey()
        for component in ("policy", "scheduler", "worker-default", "gateway"):
            self._ours(component)

    def _run(self, command: list[str], port: int, name: str, prefix: tuple[str, ...] = ()) -> None:
        process = ServerProcess(
            [*prefix, *command], port=port, name=name, log_path=self._folder / f"{name}.log"
        )
        process.start()
        self._stack.callback(process.kill)

    def _nats(self) -> None:
        port = self._places["r-inferflux-nats-0"][1]
        folder = self._folder / "nats"
        text = (ROOT / "deploy/nats/nats.conf").read_text().replace('"/data"', f'"{folder}/data"')
        text = text.replace("0.0.0.0:4222", f"{LOOPBACK}:{port}").replace("0.0.0.0:8222", f"{LOOPBACK}:0")
        cluster = (ROOT / "deploy/nats/cluster.conf").read_text()
        lay_out(folder / "etc/nats", {"inferflux.conf": text, "cluster.conf": cluster})
        lay_out(folder / "access", self.release.files("nats"))
        binary = nats_command(1, folder / "unused")[0]
        self._run([binary, "-c", str(folder / "etc/nats/cluster.conf")], port, "nats-server")

    def _valkey(self) -> None:
        port = self._places["r-inferflux-valkey-0"][1]
        folder = self._folder / "valkey"
        files = self.release.files("valkey")
        text = files[f"{LOOPBACK}.conf"].replace("port 6379\n", f"port {port}\n")
        lay_out(folder, files | {"server.conf": f'dir "{folder}"\nbind {LOOPBACK}\n{text}'})
        binary = valkey_command(1, folder / "unused")[0]
        self._run(
            [binary, str(folder / "server.conf"), "--aclfile", str(folder / "users.acl")],
            port,
            "valkey-server",
        )

    def _ours(self, component: str) -> None:
        pod = self.release.pod("worker-default" if "worker" in component else component)
        folder = self._folder / component
        files = self.release.files(component)
        # A worker mounts the file of its own user.
        own = files.get(f"{pod.name}-0.nats.url")
        lay_out(folder / "access", files | ({"nats.url": own} if own else {}))
        given = environment(pod, pod.container)
        for name, value in given.items():
            value = value.replace("/access/", f"{folder}/access/").replace("/models/", f"{ROOT}/models/")
            value = self.release.placed(value)
            if name.endswith("_LISTEN"):
                value = f"{LOOPBACK}:{self._port(name)}"
            given[name] = value
        outside = {name: value for name, value in os.environ.items() if not name.startswith("INFERFLUX_")}
        words = [f"{name}={value}" for name, value in given.items()]
        command = [sys.executable, "-m", f"inferflux.{pod.component}"]
        prefix = ("/usr/bin/env", "-i", *(f"{n}={v}" for n, v in outside.items()), *words)
        self._run(command, 0, component, prefix)

    def _port(self, variable: str) -> int:
        if variable == "INFERFLUX_POLICY_LISTEN":
            return self._places["r-inferflux-policy"][1]
        return self.http_port if variable == "INFERFLUX_GATEWAY_HTTP_LISTEN" else free_port()

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in self._folder.glob("*.log"))


def answer(port: int, path: str, key: str, body: object = None) -> dict[str, object] | None:
    """What the gateway answers; None: not yet."""
    data = json.dumps(body).encode() if body else None
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{LOOPBACK}:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as said:  # noqa: S310
            return dict(json.load(said))
    except OSError:
        return None


async def test_a_chat_is_answered_with_the_users_and_the_key_of_a_release(tmp_path: Path) -> None:
    with ExitStack() as stack:
        release = Stack(tmp_path, stack)
        release.start()
        key = release.release.files("policy")["admin.key"]
        try:
            async with asyncio.timeout(90):
                while not await asyncio.to_thread(answer, release.http_port, "/readyz", key):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(release.logs()) from None
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        said = await asyncio.to_thread(answer, release.http_port, "/v1/chat/completions", key, body)
        assert said is not None, release.logs()
        assert said["choices"]
    assert "permissions violation" not in (tmp_path / "nats-server.log").read_text().lower()
