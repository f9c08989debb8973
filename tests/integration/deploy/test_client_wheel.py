"""The client's wheels, in an environment that has gRPC and protobuf alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from harness.deploy import ROOT
from harness.images import link

# What grpcio needs beside itself is typing-extensions.
NEEDED = ("grpcio", "protobuf", "typing-extensions")
SCRIPT = """
import importlib.util, sys
import inferflux.client
from inferflux.client import Client, Unavailable
assert importlib.util.find_spec("inferflux.common") is None
assert importlib.util.find_spec("nats") is None
assert not [name for name in sys.modules if name.startswith("google.rpc")]
assert (importlib.util.find_spec("inferflux.v1.tokens_pb2").origin or "").startswith({site!r})
with Client("127.0.0.1:1", api_key="ifx_no", retries=0) as client:
    try:
        client.chat("Hello", model="m", timeout_s=20).text()
    except Unavailable as error:
        print(error.message)
"""


def test_every_distribution_names_its_licence_and_brings_it() -> None:
    found = [path for path in ROOT.glob("*/**/pyproject.toml") if ".venv" not in path.parts]
    assert len(found) >= 8
    for path in found:
        project = tomllib.loads(path.read_text())["project"]
        assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"]), path
        assert path.with_name("LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_its_wheels_need_grpc_and_protobuf_alone(tmp_path: Path) -> None:
    wheels, environment = tmp_path / "wheels", tmp_path / "venv"
    for name in ("api", "client"):
        build = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
        ]
        subprocess.run([*build, "-w", str(wheels), str(ROOT / "libs" / name)], check=True, timeout=100)
    venv.create(environment, with_pip=False, symlinks=True)
    site = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    for distribution in NEEDED:
        link(distribution, site)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, *map(str, sorted(wheels.iterdir()))], check=True, timeout=100)
    assert (site / "inferflux/client/py.typed").exists()
    assert (site / "inferflux/v1/py.typed").exists()
    for name in ("api", "client"):
        (licence,) = site.glob(f"inferflux_{name}-*.dist-info/licenses/LICENSE")
        assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()
    ran = subprocess.run(
        [str(environment / "bin/python"), "-I", "-c", SCRIPT.format(site=str(site))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "nothing answers at 127.0.0.1:1\n"), ran.stderr
