"""A rendering of the Helm chart whose processes run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from harness.helm import Manifest, Pod, files_of, helm


class Release:
    """A rendering of the chart, in which pods have addresses and ports of this machine.

    Args:
        places: address and port of pods, by name, and of Services. Ports differ, as the host is one.
    """

    def __init__(self, places: dict[str, tuple[str, int]], values: dict[str, Any]) -> None:
        done = helm("template", "r", values=values)
        assert done.returncode == 0, done.stderr
        self._made: list[Manifest] = [each for each in yaml.safe_load_all(done.stdout) if each]
        self._places = places

    def pod(self, component: str) -> Pod:
        (made,) = [
            Pod(each)
            for each in self._made
            if each["kind"] in {"Deployment", "StatefulSet"}
            and each["metadata"]["name"] == f"r-inferflux-{component}"
        ]
        return made

    def files(self, secret: str) -> dict[str, str]:
        """Files of a Secret, with the places of pods in the place of their names."""
        name = f"r-inferflux-access-{secret}"
        (made,) = [e for e in self._made if e["kind"] == "Secret" and e["metadata"]["name"] == name]
        return {self.placed(file): self.placed(text) for file, text in files_of(made).items()}

    def placed(self, text: str) -> str:
        for pod, (address, port) in self._places.items():
            host = f"{pod}.{pod.rpartition('-')[0]}" if pod[-1].isdigit() else pod
            for known in (4222, 6379, 26379, 50052):
                text = text.replace(f"{host}:{known}", f"{address}:{port}")
                text = text.replace(f"{host} {known}", f"{address} {port}")
            text = text.replace(host, address)
        return text


def lay_out(folder: Path, files: dict[str, str]) -> None:
    """Write files as a container has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
