"""docker-compose.yml and the Dockerfiles name only what exists in the code.

No container engine is needed: what a file says is compared with the modules, settings and files it means.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness.decisions import call, reservation
from harness.deploy import ROOT, Stage, is_in_build_context, read_compose, read_dockerfile

from inferflux.cli.stack.options import StackOptions
from inferflux.cli.stack.servers import (
    NATS_MAX_FILE_STORE,
    NATS_MAX_PAYLOAD,
    NATS_SYNC_INTERVAL,
    nats_command,
)
from inferflux.common.calls.service_key import parse_service_keys
from inferflux.common.contract import subjects
from inferflux.common.process import healthcheck
from inferflux.common.process.settings import load
from inferflux.common.servers.access_files import write_access
from inferflux.policy.decide.decisions.cedar_files import CedarFiles
from inferflux.policy.settings import PolicySettings
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.worker.settings import WorkerSettings
from tools.reference.settings import SETTINGS, variables

COMPOSE = read_compose({})
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ROLES = {"worker-prefill-0": "prefill", "worker-decode-0": "decode", "worker-decode-1": "decode"}
# Those with a user of NATS each.
OWN_WORKERS = {f"worker-{i}" for i in range(1, 5)} | set(ROLES)
WORKERS = {"worker", "worker-gpu"} | OWN_WORKERS
OURS = {"gateway", "policy", "scheduler"} | WORKERS
POOL_SIZES = {"INFERFLUX_PREFILL_POOL_SIZE": "1", "INFERFLUX_DECODE_POOL_SIZE": "2"}
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of a container
# Ends when it has made the users of the servers.
ONE_SHOT = "access"
LASTING = sorted(set(SERVICES) - {ONE_SHOT})
DOCKERFILES = sorted(
    [*ROOT.glob("services/*/Dockerfile*"), *ROOT.glob("deploy/*/Dockerfile*")], key=lambda p: p.parts
)
PUBLISHED = read_compose({}, "deploy/publish.yml")["services"]
PUBLIC_PORTS = {"valkey": {6379}}


@dataclass(frozen=True)
class Ours:
    """A service of ours in docker-compose.yml."""

    name: str
    service: str
    image: Stage
    environment: dict[str, str]


def dockerfile_of(name: str) -> Path:
    build = SERVICES[name]["build"]
    assert build["context"] == "."
    return ROOT / str(build["dockerfile"])


def ours(name: str) -> Ours:
    image = read_dockerfile(dockerfile_of(name))[-1]
    inherited = {k: v for k, v in image.env.items() if k.startswith("INFERFLUX_")}
    environment = inherited | SERVICES[name].get("environment", {})
    return Ours(name, image.command[2].removeprefix("inferflux."), image, environment)


def listening(name: str) -> set[int]:
    """The ports a service listens on."""
    if name in PUBLIC_PORTS:
        return PUBLIC_PORTS[name]
    if name not in OURS:
        return set(read_dockerfile(dockerfile_of(name))[-1].ports)
    return {int(v.rpartition(":")[2]) for k, v in ours(name).environment.items() if k.endswith("_LISTEN")}


def test_it_runs_every_part() -> None:
    assert set(SERVICES) == OURS | {"nats", "valkey", ONE_SHOT}
    assert {ours(name).service for name in OURS} == set(SETTINGS)


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_command_is_a_module_that_can_be_run(name: str) -> None:
    command = ours(name).image.command
    assert command[:2] == ["python", "-m"]
    assert importlib.util.find_spec(f"{command[2]}.__main__") is not None
    assert "command" not in SERVICES[name]


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_variable_is_one_the_service_reads_and_its_value_is_accepted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ours(name)
    unknown = {v.removesuffix("_FILE") for v in one.environment} - set(variables(SETTINGS[one.service]))
    assert not unknown
    for variable, value in one.environment.items():
        if not variable.endswith("_FILE"):
            monkeypatch.setenv(variable, value)
    load(SETTINGS[one.service])


@pytest.mark.parametrize("name", sorted(OURS))
def test_it_listens_on_every_interface_on_the_ports_its_image_exposes(name: str) -> None:
    one = ours(name)
    hosts = {v.rpartition(":")[0] for k, v in one.environment.items() if k.endswith("_LISTEN")}
    assert hosts == {"0.0.0.0"}  # noqa: S104
    assert listening(name) == set(one.image.ports)


def test_the_gateway_alone_is_published_unless_the_operator_asks_for_more() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]
    assert set(PUBLISHED) == {"nats", "policy"}
    assert all(set(service) == {"ports"} for service in PUBLISHED.values())


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_published_port_is_listened_on_and_open_to_this_machine_alone(name: str) -> None:
    for published in SERVICES[name].get("ports", []) + PUBLISHED.get(name, {}).get("ports", []):
        host, outside, inside = published.split(":")
        assert host == "127.0.0.1"
        assert outside == inside
        assert int(inside) in listening(name)


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_address_is_that_of_a_service_that_listens_there(name: str) -> None:
    given = ours(name).environment
    addresses = {k: v for k, v in given.items() if v and k.endswith(("_URL", "_ADDRESS"))}
    for variable, value in addresses.items():
        parts = urlsplit(value if "//" in value else f"//{value}")
        assert parts.hostname in SERVICES, variable
        assert parts.port in listening(parts.hostname), variable
        if variable != "INFERFLUX_REDIS_URL" or parts.hostname != "valkey":
            assert parts.hostname in SERVICES[name]["depends_on"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_waits_until_what_it_needs_is_healthy(name: str) -> None:
    needed = SERVICES[name]["depends_on"]
    assert set(needed) <= set(SERVICES)
    assert needed[ONE_SHOT] == {"condition": "service_completed_successfully"}
    others = {other: how for other, how in needed.items() if other not in WORKERS | {ONE_SHOT}}
    assert all(how == {"condition": "service_healthy"} for how in others.values())


@pytest.mark.parametrize("name", LASTING)
def test_a_container_sees_its_own_passwords_alone(name: str) -> None:
    mounted = [volume for volume in SERVICES[name].get("volumes", []) if ":/access" in volume]
    assert mounted == [f"access-{'worker' if name == 'worker-gpu' else name}:/access:ro"]


def test_the_one_that_makes_users_ends_and_reaches_nothing() -> None:
    service = SERVICES[ONE_SHOT]
    assert (service["restart"], service["network_mode"]) == ("no", "none")
    assert importlib.util.find_spec(service["command"][2]) is not None
    folders = {f"/access/{name}" for name in LASTING if name != "worker-gpu"}
    assert {volume.split(":")[1] for volume in service["volumes"]} == folders
    made = read_dockerfile(dockerfile_of(ONE_SHOT))[-1].runs[0].split()
    assert folders <= set(made)


def test_users_and_passwords_are_made_once_for_each_container(tmp_path: Path) -> None:
    words = SERVICES[ONE_SHOT]["command"][1:]
    command = [sys.executable, *(str(tmp_path) if word == "/access" else word for word in words)]
    subprocess.run(command, check=True)
    first = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    for name in OURS - {"worker-gpu"}:
        for variable, path in ours(name).environment.items():
            if variable.endswith("_URL_FILE"):
                is_shared = Path(path).stem == "redis" and name in OWN_WORKERS
                user = "worker" if is_shared else re.escape(name)
                server = {"nats": "nats:4222", "redis": "valkey:6379/0"}[Path(path).stem]
                content = first[tmp_path / name / Path(path).name]
                assert re.fullmatch(rf"{Path(path).stem}://{user}:[\w-]{{32}}@{server}", content)
    service_keys = {path.parent.name: text for path, text in first.items() if path.name == "service.key"}
    assert set(service_keys) == {"policy", "gateway"}
    (service_key,) = {parse_service_keys(text) for text in service_keys.values()}
    assert len(service_key) == 1
    assert {path.stat().st_mode & 0o777 for path in first if path.parts[-2] != "valkey"} == {0o400}
    subprocess.run([*command, "--tenant", "acme"], check=True)
    again = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    changed = {path.relative_to(tmp_path) for path in again if again[path] != first.get(path)}
    assert changed == {Path("nats") / n for n in ("users.conf", "passwords.json", "tokens-acme.password")}


def test_a_worker_with_a_user_of_its_own_takes_its_own_batches_alone(tmp_path: Path) -> None:
    words = SERVICES[ONE_SHOT]["command"]
    given = {words[i + 1] for i, word in enumerate(words) if word == "--worker"}
    assert given == OWN_WORKERS == {ours(name).environment["INFERFLUX_WORKER_ID"] for name in OWN_WORKERS}
    write_access(tmp_path, nats="nats:4222", redis="valkey:6379", workers=sorted(given))
    text = (tmp_path / "nats/users.conf").read_text()
    for name in OWN_WORKERS:
        block = text[text.index(f'user: "{name}"') :].partition("    }\n")[0]
        assert f'"{subjects.worker_batch(name)}"' in block
        assert not [other for other in OWN_WORKERS - {name} if other in block]
        assert subjects.worker_batch("*") not in block
        shared = {path.read_text() for path in tmp_path.rglob("nats.url") if path.parent.name != name}
        assert (tmp_path / name / "nats.url").read_text() not in shared


def test_workers_of_a_role_share_memory_and_are_named_as_inferctl_up_names_them() -> None:
    planned = StackOptions(workers=0, prefill=1, decode=2).worker_roles
    assert planned == ROLES == {name: ours(name).environment["INFERFLUX_ROLE"] for name in ROLES}
    for name in ROLES:
        assert SERVICES[name]["profiles"] == ["disaggregated"]
        assert f"kv-shared:{SHARED_MEMORY}" in SERVICES[name]["volumes"]
        assert ours(name).environment["INFERFLUX_WORKER_DISK_PATH"] == ""
    others = {name for name in OURS - set(ROLES) if "kv-shared:" in str(SERVICES[name].get("volumes"))}
    assert not others
    options = COMPOSE["volumes"]["kv-shared"]["driver_opts"]
    assert (options["type"], options["o"].split(",")[0]) == ("tmpfs", "size=2g")
    shm_bytes = WorkerSettings.model_fields["shm_bytes"].default
    assert shm_bytes <= 2 << 30, "the exchange would not fit"


def test_schedulers_expect_the_pools_that_the_operator_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in read_compose(POOL_SIZES)["services"]["scheduler"]["environment"].items():
        if not variable.endswith("_FILE"):
            monkeypatch.setenv(variable, value)
    settings = load(SchedulerSettings)
    assert (settings.prefill_pool_size, settings.decode_pool_size) == (1, 2)


def test_the_gateway_stops_before_the_workers_and_starts_without_them() -> None:
    """Services stop in the reverse order of what they depend on."""
    needed = SERVICES["gateway"]["depends_on"]
    workers = {name for name in OURS if ours(name).service == "worker"}
    assert workers == WORKERS
    for name in workers:
        assert needed[name] == {"condition": "service_started", "required": False}
        assert "gateway" not in SERVICES[name]["depends_on"]
    assert not any(
        WORKERS & set(SERVICES[name].get("depends_on", ())) for name in set(SERVICES) - {"gateway"}
    )


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_bounds_of_memory_and_logs_and_writes_to_volumes_alone(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert re.fullmatch(r"[0-9]+[mg]", service["mem_limit"])
    assert service["logging"]["driver"] == "json-file"
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "cap_add" not in service


@pytest.mark.parametrize("name", LASTING)
def test_a_service_is_asked_for_its_health_every_second_while_it_starts(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["start_interval"] == "1s"
    assert int(check["start_period"].removesuffix("s")) >= 30


def test_valkey_is_not_healthy_while_it_answers_with_errors() -> None:
    how, command = SERVICES["valkey"]["healthcheck"]["test"]
    assert how == "CMD-SHELL"
    assert command.endswith("valkey-cli -e --user health ping")


@pytest.mark.parametrize("name", LASTING)
def test_every_service_has_a_health_check_and_a_user_that_is_not_root(name: str) -> None:
    service = SERVICES[name]
    image = read_dockerfile(dockerfile_of(name))[-1] if "build" in service else Stage("", "")
    assert service.get("healthcheck", {}).get("test") or image.healthcheck
    user = service.get("user") or image.user
    assert user
    assert user.split(":")[0] not in {"root", "0"}
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_health_check_asks_the_port_the_service_answers_on(name: str) -> None:
    one = ours(name)
    assert f'CMD ["python", "-m", "{healthcheck.__name__}"]' in one.image.healthcheck
    assert "does not say a port" not in healthcheck.check(one.environment["INFERFLUX_METRICS_LISTEN"])


def test_a_second_scheduler_stands_by_and_nothing_keeps_the_two_from_running_side_by_side() -> None:
    scheduler = SERVICES["scheduler"]
    assert scheduler["deploy"]["replicas"] == 2
    assert not {"ports", "container_name", "hostname"} & set(scheduler)
    assert all(volume.endswith(":ro") for volume in scheduler["volumes"])
    assert "INFERFLUX_SCHEDULER_ID" not in ours("scheduler").environment


def test_named_volumes_are_declared_and_mounted_files_exist() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert (ROOT / source).exists()
            else:
                assert source in COMPOSE["volumes"]
            own = {"/models", "/kv", "/cedar", SHARED_MEMORY} if name in OURS else {"/data"}
            assert target in own | {"/access"} or (name == ONE_SHOT and target.startswith("/access/"))


def test_the_model_that_is_served_by_default_is_in_the_folder_that_is_mounted() -> None:
    for name in ("worker", "worker-gpu"):
        path = ours(name).environment["INFERFLUX_WORKER_MODEL_PATH"]
        assert (ROOT / "models" / Path(path).relative_to("/models")).is_file()


ISSUER = {"issuer": "https://idp.example.com", "audiences": ["inferflux"], "tenant": "acme"}
DECIDING = {
    "INFERFLUX_POLICY_OIDC_ISSUERS": json.dumps([ISSUER]),
    "INFERFLUX_POLICY_DECISIONS": "builtin,opa",
    "INFERFLUX_POLICY_DECISIONS_FAIL_OPEN": "opa",
    "INFERFLUX_POLICY_OPA_URL": "https://opa.example.com/v1/data/inferflux/decision",
    "INFERFLUX_POLICY_OPA_TOKEN": "a-token-of-opa",
    "INFERFLUX_POLICY_OPA_SEES_TEXT": "true",
    "INFERFLUX_HTTP_ALLOWED_NETWORKS": "10.0.0.0/8",
}
WITH_CEDAR = {"INFERFLUX_POLICY_DECISIONS": "builtin,cedar", "INFERFLUX_POLICY_DECISIONS_FAIL_OPEN": ""}


@pytest.mark.parametrize("given", [{}, WITH_CEDAR])
def test_the_operator_may_choose_who_decides_and_whose_tokens_are_taken(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = DECIDING | given
    environment = read_compose(chosen)["services"]["policy"]["environment"]
    assert {name: environment[name] for name in chosen} == chosen
    for variable, value in environment.items():
        if not variable.endswith("_FILE"):
            monkeypatch.setenv(variable, value)
    settings = load(PolicySettings)
    assert settings.oidc_issuers[0].tenant == "acme"
    assert settings.decision_order == chosen["INFERFLUX_POLICY_DECISIONS"].split(",")


def test_the_policies_of_cedar_that_are_mounted_permit_what_builtin_does() -> None:
    assert "./deploy/cedar:/cedar:ro" in SERVICES["policy"]["volumes"]
    environment = ours("policy").environment
    paths = [
        ROOT / "deploy" / environment[f"INFERFLUX_POLICY_CEDAR_{name}"].lstrip("/")
        for name in ("POLICIES", "ENTITIES")
    ]
    rules = CedarFiles(*paths).read()
    assert rules.decide(call()).is_permitted
    assert rules.decide(reservation()).is_permitted


def test_there_is_no_draft_model_unless_the_operator_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ours("worker").environment.items():
        if not variable.endswith("_FILE"):
            monkeypatch.setenv(variable, value)
    settings = load(WorkerSettings)
    assert (settings.draft_model, settings.speculation) == (None, "off")


def test_the_gpu_worker_is_off_by_default_and_reserves_a_gpu() -> None:
    with_profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    own = {name: ["disaggregated" if name in ROLES else "own-workers"] for name in OWN_WORKERS}
    assert with_profiles == {"worker-gpu": ["gpu"]} | own
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]
    cmake = next(s for s in read_dockerfile(dockerfile_of("worker-gpu")) if s.name == "packages").env
    assert "-DGGML_CUDA=ON" in cmake["CMAKE_ARGS"]


def test_the_operator_may_choose_the_key_the_model_and_the_slots() -> None:
    chosen = {
        "INFERFLUX_POLICY_BOOTSTRAP_KEY": "ifx_" + "k" * 43,
        "INFERFLUX_SERVICE_KEY": "s" * 32,
        "INFERFLUX_MODEL_FILE": "other.gguf",
        "INFERFLUX_WORKER_SLOTS": "4",
        "INFERFLUX_WORKER_PREFIX_CACHE": "false",
        "INFERFLUX_WORKER_KV_TYPE_K": "q8_0",
        "INFERFLUX_WORKER_KV_TYPE_V": "q4_0",
        "INFERFLUX_WORKER_SPECULATION": "draft",
        "INFERFLUX_DRAFT_MODEL_FILE": "small.gguf",
        "INFERFLUX_WORKER_MEMORY": "3g",
        "INFERFLUX_WORKER_HOST_BYTES": "1000",
        "INFERFLUX_WORKER_DISK_BYTES": "0",
        "INFERFLUX_GATEWAY_PORT": "50061",
        "INFERFLUX_GATEWAY_HTTP_PORT": "8081",
        "INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES": "2000",
        "INFERFLUX_AUDIT_KEY": "an-audit-key-of-compose",
        "INFERFLUX_SHARED_MEMORY": "8g",
        "INFERFLUX_WORKER_SHM_BYTES": "3000",
        **POOL_SIZES,
    }
    composed = read_compose(chosen)
    services = composed["services"]
    assert composed["volumes"]["kv-shared"]["driver_opts"]["o"].startswith("size=8g,")
    assert services["gateway"]["ports"] == ["127.0.0.1:50061:50051", "127.0.0.1:8081:8080"]
    assert services["gateway"]["environment"]["INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES"] == "2000"
    assert services["policy"]["environment"]["INFERFLUX_POLICY_BOOTSTRAP_KEY"] == "ifx_" + "k" * 43
    for name in ("gateway", "policy"):
        assert services[name]["environment"]["INFERFLUX_AUDIT_KEY"] == chosen["INFERFLUX_AUDIT_KEY"]
    assert {n for n in OURS if services[n]["environment"].get("INFERFLUX_SERVICE_KEY") == "s" * 32} == {
        "policy",
        "gateway",
    }
    for name in WORKERS:
        environment = services[name]["environment"]
        assert environment["INFERFLUX_WORKER_MODEL_PATH"] == "/models/other.gguf"
        assert environment["INFERFLUX_WORKER_DRAFT_MODEL"] == "/models/small.gguf"
        same = {name for name in chosen if name.startswith("INFERFLUX_WORKER_")} - {"INFERFLUX_WORKER_MEMORY"}
        assert {name: environment[name] for name in same} == {name: chosen[name] for name in same}
        assert services[name]["mem_limit"] == "3g"
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) == set(chosen | DECIDING)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: "/".join(p.parts[-2:]))
def test_what_a_dockerfile_copies_exists_and_is_in_the_build_context(path: Path) -> None:
    for stage in read_dockerfile(path):
        for sources, _ in stage.copies:
            for source in sources:
                assert (ROOT / source).exists(), source
                assert is_in_build_context(source), source
                if (ROOT / source).is_dir():
                    assert is_in_build_context(f"{source}/common/settings.py")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: "/".join(p.parts[-2:]))
def test_what_is_copied_can_be_read_by_the_user_of_the_image_whatever_the_checkouts_umask(path: Path) -> None:
    for stage in read_dockerfile(path):
        for (sources, _), mode in zip(stage.copies, stage.modes, strict=True):
            wanted = "755" if any((ROOT / source).is_dir() for source in sources) else "644"
            assert mode == wanted, sources


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: "/".join(p.parts[-2:]))
def test_a_stage_copies_from_a_stage_there_is(path: Path) -> None:
    stages = read_dockerfile(path)
    for i, stage in enumerate(stages):
        for origin, source, target in stage.copies_from:
            assert origin in {s.name for s in stages[:i]}
            assert source == target == "/opt/venv"


def test_what_is_of_this_machine_alone_stays_out_of_the_build_context() -> None:
    for path in (
        ".venv/bin/python",
        ".git/config",
        ".env",
        "models/inferflux-demo.gguf",
        "tests/conftest.py",
        "libs/common/inferflux/common/__pycache__/bus.pyc",
    ):
        assert not is_in_build_context(path)


@pytest.mark.parametrize("name", sorted(OURS))
def test_only_what_reads_models_pays_for_llama_cpp_and_no_image_is_built_for_one_cpu(name: str) -> None:
    one = ours(name)
    packages = read_dockerfile(dockerfile_of(name))[0]
    needs_llama = one.service in {"gateway", "worker"}
    wanted = "requirements/llama.txt" if needs_llama else "requirements/services.txt"
    copied = ["requirements/pip.txt", wanted] if needs_llama else [wanted]
    if one.service == "policy":
        copied.append("requirements/cedar.txt")
    own = [(["requirements/http.txt"], "/build/")] if one.service == "gateway" else []
    assert packages.copies == [(copied, "/build/"), *own]
    assert any("--require-hashes" in run and "http.txt" in run for run in packages.runs) is bool(own)
    assert any("--require-hashes" in run and Path(wanted).name in run for run in packages.runs)
    if needs_llama:
        assert "-DGGML_NATIVE=OFF" in packages.env["CMAKE_ARGS"]
        # The cache of compiled wheels does not know the settings: each set of them has a folder of its own.
        assert any("type=cache" in mount and "target=/cache" in mount for mount in packages.mounts)
        assert any('--cache-dir "/cache/$(echo "$CMAKE_ARGS' in run for run in packages.runs)
        assert any("rm -rf lib include bin" in run for run in packages.runs)
    pinned = (ROOT / wanted).read_text()
    assert ("llama-cpp-python==" in pinned) is needs_llama


def test_llama_cpp_is_built_with_the_options_of_the_makefile_but_portable() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"CMAKE_ARGS :?= (.*)", makefile)
    assert found is not None
    native = set(found[1].split())
    for name in ("gateway", "worker"):
        portable = set(read_dockerfile(dockerfile_of(name))[0].env["CMAKE_ARGS"].split())
        # A portable build has no such instruction sets to leave out.
        assert portable == (native - {"-DGGML_NATIVE=ON", "$(NO_SETS)"}) | {"-DGGML_NATIVE=OFF"}


def test_nats_takes_its_configuration_and_the_payloads_we_send(tmp_path: Path) -> None:
    text = (ROOT / "deploy/nats/nats.conf").read_text()
    # As in its image: nats.conf is two folders below the root.
    config = tmp_path / "etc/nats/inferflux.conf"
    config.parent.mkdir(parents=True)
    config.write_text(text)
    (tmp_path / "access").mkdir()
    write_access(tmp_path / "access", nats="nats:4222", redis="valkey:6379", tenants=["default"])
    binary = nats_command(4222, tmp_path)[0]
    (tmp_path / "access/users.conf").symlink_to(tmp_path / "access/nats/users.conf")
    checked = subprocess.run([binary, "-t", "-c", str(config)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"max_payload: {NATS_MAX_PAYLOAD}\n" in text
    assert f"sync_interval: {NATS_SYNC_INTERVAL}\n" in text
    assert f"max_file_store: {NATS_MAX_FILE_STORE}\n" in text
    assert set(re.findall(r'"0\.0\.0\.0:(\d+)"', text)) == {str(p) for p in listening("nats")}
    image = read_dockerfile(dockerfile_of("nats"))[-1]
    assert (["deploy/nats/nats.conf"], image.command[-1]) in image.copies


def test_the_services_get_time_to_drain_before_they_are_killed() -> None:
    for name in OURS:
        drain_limit_s = variables(SETTINGS[ours(name).service])["INFERFLUX_DRAIN_LIMIT_S"].default
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain_limit_s + 5
