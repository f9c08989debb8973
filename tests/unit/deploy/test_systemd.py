"""The units of deploy/systemd: held to the code, and to what systemd says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness.deploy import ROOT

from inferflux.cli.doctor.facts.environment import parse
from inferflux.cli.doctor.facts.units import environment_of
from inferflux.cli.stack.cert_files import NAMES
from inferflux.cli.stack.servers import NATS_MAX_FILE_STORE, NATS_MAX_PAYLOAD, NATS_SYNC_INTERVAL
from inferflux.common.process import lifecycle
from inferflux.common.process.settings import FILE_SUFFIX, ServiceSettings
from inferflux.common.servers.access_files import write_access
from tools.reference.settings import SETTINGS, variables

UNITS = ROOT / "deploy/systemd"
CHECKOUT = "/opt/inferflux"
# The most that systemd may find exposed of a unit, of 10.
EXPOSURE = 2.5
ANALYZE = shutil.which("systemd-analyze") or ""
systemd = pytest.mark.skipif(not ANALYZE, reason="no systemd-analyze here")


def unit_of(service: str) -> Path:
    return UNITS / f"inferflux-{service}{'@' if service == 'worker' else ''}.service"


def values(path: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", path.read_text(), re.MULTILINE)


def value(path: Path, key: str) -> str:
    (found,) = values(path, key)
    return found


ALL = sorted(UNITS.glob("*.service"))
OURS = [unit_of(service) for service in SETTINGS]


def test_every_service_has_a_unit() -> None:
    assert {path.name for path in OURS} < {path.name for path in ALL}
    assert {path.stem for path in ALL} - {path.stem for path in OURS} == {
        "inferflux-nats",
        "inferflux-valkey",
    }


@pytest.mark.parametrize("service", SETTINGS)
def test_a_unit_sets_variables_that_its_service_reads(service: str) -> None:
    known = set(variables(SETTINGS[service]))
    named = {pair.partition("=")[0] for pair in values(unit_of(service), "Environment")}
    assert {name if name in known else name.removesuffix(FILE_SUFFIX) for name in named} <= known
    of_tls = {pair.partition("=")[0] for pair in values(UNITS / "tls.conf", "Environment")}
    assert of_tls <= known


@pytest.mark.parametrize("service", SETTINGS)
def test_a_unit_starts_the_command_of_its_package(service: str) -> None:
    project = (ROOT / "services" / service / "pyproject.toml").read_text()
    command = value(unit_of(service), "ExecStart")
    assert command == f"{CHECKOUT}/.venv/bin/inferflux-{service}"
    assert f"\ninferflux-{service} = " in project


def test_credentials_are_files_that_the_command_for_access_makes(tmp_path: Path) -> None:
    write_access(tmp_path, nats="127.0.0.1:4222", redis="127.0.0.1:6379")
    for unit in ALL:
        for credential in values(unit, "LoadCredential"):
            name, _, place = credential.partition(":")
            made = place.removeprefix("/etc/inferflux/access/")
            assert (tmp_path / made).is_file() or place == "/etc/inferflux/nats.conf", credential
            assert f"%d/{name}" in unit.read_text() or name == "users.conf"
    for service in SETTINGS:
        assert service in NAMES  # what tls.conf names by %j


def test_what_a_unit_reads_as_a_credential_it_loads() -> None:
    for unit in [*ALL, UNITS / "tls.conf"]:
        loaded = {credential.partition(":")[0] for credential in values(unit, "LoadCredential")}
        text = "\n".join(line for line in unit.read_text().splitlines() if line[:1] != "#")
        assert set(re.findall(r"%d/([\w.]+)", text)) <= loaded


def test_a_stop_takes_longer_than_a_drain() -> None:
    drains_s = ServiceSettings.model_fields["drain_limit_s"].default + lifecycle._TIDY_UP_S
    notice_s = SETTINGS["gateway"].model_fields["drain_notice_s"].default
    for unit in OURS:
        assert int(value(unit, "TimeoutStopSec")) > drains_s + notice_s
        assert value(unit, "KillSignal") == "SIGTERM"
        assert value(unit, "RestartPreventExitStatus") == str(lifecycle._BAD_SETTING)


def test_the_gateway_ends_before_the_others() -> None:
    gateway = unit_of("gateway")
    after = value(gateway, "After").split()
    assert {"inferflux-scheduler.service", "inferflux-policy.service"} <= set(after)
    assert gateway.name in value(unit_of("worker"), "Before")


def test_open_files_are_enough_for_the_streams_of_a_gateway() -> None:
    streams = SETTINGS["gateway"].model_fields["max_streams"].default
    for unit in OURS:
        assert int(value(unit, "LimitNOFILE")) > 2 * streams


def test_ports_of_a_host_are_all_different() -> None:
    named = re.findall(r"127\.0\.0\.1:(\d+)", "".join(unit.read_text() for unit in OURS))
    defaults = [SETTINGS[service].model_fields["listen"].default for service in ("gateway", "policy")]
    ports = [*named, *(address.rpartition(":")[2] for address in defaults)]
    assert len(ports) == len(set(ports)) == 6


@pytest.mark.parametrize("unit", ALL, ids=lambda path: path.stem)
def test_a_unit_is_hardened(unit: Path) -> None:
    for key, wanted in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
        "Restart": "on-failure",
        "StartLimitIntervalSec": "0",
        "PartOf": "inferflux.target",
        "WantedBy": "inferflux.target",
    }.items():
        assert value(unit, key) == wanted, key
    assert values(unit, "DynamicUser") == ["yes"] or values(unit, "User") == ["inferflux-worker"]
    assert "User" not in unit.read_text() or "inferflux-worker" in (UNITS / "inferflux.sysusers").read_text()


def test_nats_is_set_as_inferctl_up_sets_it() -> None:
    text = (UNITS / "nats.conf").read_text()
    assert f"max_payload: {NATS_MAX_PAYLOAD}\n" in text
    assert f"sync_interval: {NATS_SYNC_INTERVAL}\n" in text
    assert f"max_file_store: {NATS_MAX_FILE_STORE}\n" in text
    (state,) = values(UNITS / "inferflux-nats.service", "StateDirectory")
    assert f'store_dir: "/var/lib/{state}"' in text
    assert "--maxmemory-policy noeviction" in (UNITS / "inferflux-valkey.service").read_text()


def test_the_environment_of_a_unit_is_read_with_its_files(tmp_path: Path) -> None:
    unit = tmp_path / "inferflux-worker@.service"
    shared = tmp_path / "shared.env"
    shared.write_text("INFERFLUX_WORKER_SLOTS=4\nINFERFLUX_LOG_FORMAT=console\n")
    text = unit_of("worker").read_text().replace("/etc/inferflux/inferflux.env", str(shared))
    unit.write_text(text)
    (tmp_path / f"{unit.name}.d").mkdir()
    (tmp_path / f"{unit.name}.d" / "tls.conf").write_text((UNITS / "tls.conf").read_text())
    found = environment_of(tmp_path / "inferflux-worker@3.service", parse)
    assert found["INFERFLUX_NATS_URL_FILE"] == "/etc/inferflux/access/worker/nats.url"
    assert found["INFERFLUX_MODELS_STORE"] == "/var/lib/inferflux-worker/models"
    assert found["INFERFLUX_TLS_CERT"] == "/etc/inferflux/tls/worker.pem"
    assert found["INFERFLUX_WORKER_ID"].endswith("-3")
    assert (found["INFERFLUX_WORKER_SLOTS"], found["INFERFLUX_LOG_FORMAT"]) == ("4", "console")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units, of this checkout."""
    folder = tmp_path_factory.mktemp("units")
    for unit in [*ALL, UNITS / "inferflux.target"]:
        text = unit.read_text().replace(CHECKOUT, str(ROOT))
        # A link to the server of the package, which docs/hosts.md has made.
        (folder / unit.name).write_text(
            text.replace(f"{ROOT}/.venv/bin/valkey-server", shutil.which("true") or "")
        )
    return folder


@systemd
def test_systemd_takes_the_units(installed: Path) -> None:
    units = [str(path).replace("@.", "@0.") for path in sorted(installed.iterdir())]
    shutil.copy(installed / "inferflux-worker@.service", installed / "inferflux-worker@0.service")
    checked = subprocess.run(
        [ANALYZE, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@systemd
def test_systemd_finds_little_exposed(installed: Path) -> None:
    units = [str(path) for path in installed.glob("*.service")]
    said = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={round(10 * EXPOSURE)}", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout[-2000:]
    found = re.findall(r"exposure level for (\S+): ([\d.]+)", said.stdout)
    assert len(found) >= len(ALL)
    assert all(float(level) <= EXPOSURE for _, level in found), found
