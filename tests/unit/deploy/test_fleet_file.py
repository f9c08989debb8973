"""docker-compose.fleet.yml goes with docker-compose.yml and with what the service `access` makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.deploy import ROOT, read_compose, read_dockerfile

BASE: dict[str, dict[str, Any]] = read_compose({})["services"]
FLEET = read_compose({}, "docker-compose.fleet.yml")
SERVICES: dict[str, dict[str, Any]] = FLEET["services"]
NATS = ["nats", "nats-2", "nats-3"]
VALKEY = ["valkey", "valkey-2"]
SENTINELS = ["sentinel-1", "sentinel-2", "sentinel-3"]
NEW = sorted(SERVICES.keys() - BASE.keys())


def test_there_are_as_many_of_each_as_a_fleet_needs() -> None:
    assert sorted(["gateway-2", *NATS[1:], *VALKEY[1:], *SENTINELS]) == NEW
    assert [SERVICES[name]["deploy"]["replicas"] for name in ("policy", "worker")] == [2, 2]
    assert BASE["scheduler"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", NEW)
def test_a_new_service_has_the_bounds_of_one_that_is_there(name: str) -> None:
    assert SERVICES[name]["extends"]["file"] == "docker-compose.yml"
    assert SERVICES[name]["extends"]["service"] in BASE
    assert not {"user", "cap_add", "read_only", "security_opt"} & set(SERVICES[name])


def test_no_two_containers_write_to_the_same_volume() -> None:
    data = [
        volume.split(":")[0]
        for name in [*NATS, *VALKEY, *SENTINELS]
        for volume in SERVICES[name].get("volumes", BASE.get(name, {}).get("volumes", []))
        if volume.split(":")[1] == "/data"
    ]
    assert len(set(data)) == len(data) == len(NATS + VALKEY + SENTINELS)
    declared = FLEET["volumes"].keys() | read_compose({})["volumes"].keys()
    assert set(data) <= declared


def test_both_gateways_are_told_the_same_and_are_published_at_ports_of_their_own() -> None:
    gateway, other = BASE["gateway"], SERVICES["gateway-2"]
    inherited = {
        name: value
        for name, value in BASE[other["extends"]["service"]]["environment"].items()
        if not name.endswith("_POOL_SIZE")  # of schedulers; a gateway does not read them
    }
    assert inherited | other["environment"] == gateway["environment"]
    for key in ("image", "mem_limit", "tmpfs", "volumes", "build"):
        assert other[key] == gateway[key]
    published = [each.split(":")[1] for each in [*gateway["ports"], *other["ports"]]]
    assert len(set(published)) == 4
    assert all(each.startswith("127.0.0.1:") for each in other["ports"])


def test_what_users_of_the_servers_are_told_are_those_that_there_are(tmp_path: Path) -> None:
    words = SERVICES["access"]["command"][1:]
    command = [sys.executable, *(str(tmp_path) if word == "/access" else word for word in words)]
    subprocess.run(command, check=True)
    urls = (tmp_path / "gateway/nats.url").read_text().split(",")
    assert [re.sub(".*@", "", url) for url in urls] == [f"{name}:4222" for name in NATS]
    url = (tmp_path / "policy/redis.url").read_text()
    hosts = ",".join(f"{name}:26379" for name in SENTINELS)
    assert re.fullmatch(
        rf"redis\+sentinel://policy:[\w-]+@{hosts}/policy-store/0\?sentinel_password=[\w-]+", url
    )
    routes = re.findall(r"@([\w-]+):6222", (tmp_path / "nats/cluster.conf").read_text())
    assert routes == NATS
    for kind, names in (("valkey", VALKEY), ("sentinel", SENTINELS)):
        for name in names:
            assert SERVICES[name]["hostname"] == name
            assert "/access/$$HOSTNAME.conf" in SERVICES[name]["command"][2]
            assert f"announce-ip {name}" in (tmp_path / f"{kind}/{name}.conf").read_text()
    assert (tmp_path / "sentinel/health.password").read_text() in url


def test_a_second_run_of_it_changes_nothing(tmp_path: Path) -> None:
    words = SERVICES["access"]["command"][1:]
    command = [sys.executable, *(str(tmp_path) if word == "/access" else word for word in words)]
    subprocess.run(command, check=True)
    first = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    subprocess.run(command, check=True)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == first


def test_servers_that_are_watched_are_several_and_one_alone_is_not(tmp_path: Path) -> None:
    module = [
        sys.executable,
        "-m",
        "inferflux.common.servers.access_files",
        str(tmp_path),
        "--nats",
        "nats:4222",
    ]
    for words in (["--redis", "a:1,b:2"], ["--redis", "a:1", "--sentinel", "s:3"]):
        refused = subprocess.run([*module, *words], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "--sentinel" in refused.stderr
    assert not [*tmp_path.iterdir()]


def test_the_image_has_what_the_nats_servers_are_started_with() -> None:
    image = read_dockerfile(ROOT / "deploy/nats/Dockerfile")[-1]
    (config,) = [target for sources, target in image.copies if sources == ["deploy/nats/cluster.conf"]]
    for name in NATS:
        assert SERVICES[name]["command"] == ["-c", config, "--name", name]


def test_volumes_of_passwords_can_be_written_to_whichever_container_is_made_first() -> None:
    """Policy's own is mounted at /access of the same image."""
    made = read_dockerfile(ROOT / "services/policy/Dockerfile")[-1].runs[0].split()
    owned = made[made.index("install") :]
    assert {"/access", "/access/sentinel"} <= set(owned)
    assert owned[1:6] == ["-d", "-o", "10001", "-g", "10001"]
