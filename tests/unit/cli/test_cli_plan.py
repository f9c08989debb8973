"""Which processes make up a stack."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from inferflux.cli.reach.state_dir import StateDir
from inferflux.cli.stack.access import Access, grant
from inferflux.cli.stack.options import POOL_SIZES, ROLE, THREADS, ZONE, StackOptions
from inferflux.cli.stack.plan import END_ORDER, ProcessSpec, joining, plan
from inferflux.cli.stack.ports import Ports
from inferflux.cli.up import null_workers_of, zones_of

PORTS = Ports(nats=1001, redis=1002, policy=1003, gateway=1004, http=1005)


def made(
    tmp_path: Path,
    options: StackOptions,
    cores: int = 8,
    access: Access | None = None,
    ports: Ports = PORTS,
) -> list[list[ProcessSpec]]:
    return plan(
        options,
        model=Path("/m/demo.gguf"),
        ports=ports,
        state_dir=tmp_path,
        api_key="ifx_key",
        service_key="between-services",
        access=access or grant(StateDir(tmp_path), options.worker_roles),
        cores=cores,
    )


def threads(tmp_path: Path, options: StackOptions, cores: int) -> list[str | None]:
    """What each worker is told of its engine's threads."""
    stages = made(tmp_path, options, cores)
    return [spec.env.get(THREADS) for spec in by_name(stages).values() if spec.kind == "worker"]


def by_name(stages: list[list[ProcessSpec]]) -> dict[str, ProcessSpec]:
    return {spec.name: spec for stage in stages for spec in stage}


def test_servers_start_first(tmp_path: Path) -> None:
    stages = made(tmp_path, StackOptions(workers=2))
    assert [[spec.name for spec in stage] for stage in stages] == [
        ["nats", "valkey"],
        ["policy", "scheduler", "worker-0", "worker-1", "gateway"],
    ]


def test_several_schedulers_are_told_apart_by_name(tmp_path: Path) -> None:
    alone = by_name(made(tmp_path, StackOptions()))["scheduler"]
    assert alone.env["INFERFLUX_SCHEDULER_ID"] == "scheduler"
    specs = by_name(made(tmp_path, StackOptions(schedulers=2)))
    schedulers = {name: spec for name, spec in specs.items() if spec.kind == "scheduler"}
    assert set(schedulers) == {"scheduler-0", "scheduler-1"}
    assert all(spec.env["INFERFLUX_SCHEDULER_ID"] == name for name, spec in schedulers.items())


def test_gateways_and_workers_are_dealt_out_to_zones_in_turn(tmp_path: Path) -> None:
    ports = replace(PORTS, other_gateways=((1006, 1007), (1008, 1009)))
    options = StackOptions(workers=3, gateways=3, schedulers=2, zones=("north", "south"))
    specs = by_name(made(tmp_path, options, ports=ports))
    zones = {name: spec.env[ZONE] for name, spec in specs.items() if ZONE in spec.env}
    assert zones == {
        f"{kind}-{index}": ("north", "south", "north")[index]
        for kind in ("gateway", "worker")
        for index in range(3)
    }


def test_workers_have_the_roles_that_are_asked_for_and_schedulers_expect_them(tmp_path: Path) -> None:
    specs = by_name(made(tmp_path, StackOptions(workers=0, prefill=1, decode=2)))
    roles = {name: spec.env[ROLE] for name, spec in specs.items() if spec.kind == "worker"}
    assert roles == {"worker-prefill-0": "prefill", "worker-decode-0": "decode", "worker-decode-1": "decode"}
    assert [specs[name].env["INFERFLUX_WORKER_ID"] for name in roles] == list(roles)
    assert len({specs[name].env["INFERFLUX_NATS_URL"] for name in roles}) == 3
    sizes = [specs["scheduler"].env[name] for name in POOL_SIZES.values()]
    assert sizes == ["1", "2"]


def test_workers_without_a_role_beside_others_serve_whole_requests(tmp_path: Path) -> None:
    options = StackOptions(workers=1, prefill=1, decode=1, null_workers=3)
    specs = by_name(made(tmp_path, options))
    assert specs["worker-0"].env[ROLE] == "unified"
    assert [specs["scheduler"].env[name] for name in POOL_SIZES.values()] == ["3", "3"]
    assert options.n_workers == 9
    assert options.role_words == "1 unified, 1 prefill, 1 decode"
    assert not StackOptions(workers=2).role_words


def test_a_stack_without_roles_leaves_them_to_the_environment(tmp_path: Path) -> None:
    said = {ROLE, *POOL_SIZES.values()}
    assert not [spec for spec in by_name(made(tmp_path, StackOptions())).values() if said & set(spec.env)]


def test_a_stack_without_zones_leaves_them_to_the_environment(tmp_path: Path) -> None:
    assert not [spec for spec in by_name(made(tmp_path, StackOptions())).values() if ZONE in spec.env]


@pytest.mark.parametrize("text", [",", "north,", "north,,south", "in the north", "a.b", "z" * 65])
def test_what_is_no_zone_is_refused_by_the_flag(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no name of a zone") as caught:
        zones_of(text)
    assert caught.value.param_hint == "--zones"


def test_zones_are_names_between_commas() -> None:
    assert (zones_of(""), zones_of("a"), zones_of("a, b-1")) == ((), ("a",), ("a", "b-1"))


@pytest.mark.parametrize(
    ("engine", "count", "workers"),
    [("null", "30", 30), ("null", "", 1), ("null", "many", 0), ("llama", "30", 0), ("", "", 0)],
)
def test_null_workers_of_the_environment_are_known_to_the_stack(
    engine: str, count: str, workers: int
) -> None:
    """Else they would connect as a user that may not speak for them."""
    env = {"INFERFLUX_WORKER_ENGINE": engine, "INFERFLUX_WORKER_NULL_WORKERS": count}
    assert null_workers_of(env) == workers


def test_several_policies_are_told_to_those_who_call_them(tmp_path: Path) -> None:
    ports = replace(PORTS, other_policies=(1006,))
    specs = by_name(made(tmp_path, StackOptions(policies=2), ports=ports))
    assert specs["gateway"].env["INFERFLUX_POLICY_ADDRESS"] == "127.0.0.1:1003,127.0.0.1:1006"
    listens = [specs[f"policy-{index}"].env["INFERFLUX_POLICY_LISTEN"] for index in range(2)]
    assert listens == ["127.0.0.1:1003", "127.0.0.1:1006"]


@pytest.mark.parametrize("own", ["nats", "valkey", None])
def test_a_server_that_others_run_takes_the_place_of_the_stacks_own(tmp_path: Path, own: str | None) -> None:
    nats_url = "" if own == "nats" else "nats://a:1,nats://b:2"
    redis_url = "" if own == "valkey" else "redis-cluster://c:3/0"
    access = replace(grant(StateDir(tmp_path), ["worker-0"]), other_nats=nats_url, other_redis=redis_url)
    options = StackOptions(nats_url=nats_url, redis_url=redis_url)
    stages = made(tmp_path, options, access=access)
    assert [spec.name for stage in stages for spec in stage if not spec.is_service] == [own] * bool(own)
    for spec in stages[-1]:
        assert spec.kind == "policy" or not nats_url or spec.env["INFERFLUX_NATS_URL"] == nats_url
        assert not redis_url or spec.env["INFERFLUX_REDIS_URL"] == redis_url


def test_several_gateways_listen_on_ports_of_their_own(tmp_path: Path) -> None:
    ports = replace(PORTS, other_gateways=((1006, 1007),))
    specs = by_name(made(tmp_path, StackOptions(gateways=2), ports=ports))
    listens = {
        name: (spec.env["INFERFLUX_GATEWAY_LISTEN"], spec.env["INFERFLUX_GATEWAY_HTTP_LISTEN"])
        for name, spec in specs.items()
        if spec.kind == "gateway"
    }
    assert listens == {
        "gateway-0": ("127.0.0.1:1004", "127.0.0.1:1005"),
        "gateway-1": ("127.0.0.1:1006", "127.0.0.1:1007"),
    }
    assert specs["gateway-1"].env["INFERFLUX_NATS_URL"].startswith("nats://gateway:")


def test_every_kind_of_process_has_its_turn_to_end(tmp_path: Path) -> None:
    ended = [kind for kinds in END_ORDER for kind in kinds]
    assert ended[0] == "gateway"
    specs = by_name(made(tmp_path, StackOptions()))
    assert sorted(ended) == sorted({spec.kind for spec in specs.values()})


def test_every_service_is_told_where_the_others_are(tmp_path: Path) -> None:
    services = [spec for spec in by_name(made(tmp_path, StackOptions())).values() if spec.is_service]
    assert len(services) == 4
    for spec in services:
        nats, redis = spec.env.get("INFERFLUX_NATS_URL", ""), spec.env["INFERFLUX_REDIS_URL"]
        user = spec.name if spec.kind == "worker" else spec.kind
        assert re.fullmatch(rf"nats://{user}:[\w-]{{32}}@127\.0\.0\.1:1001", nats) or user == "policy"
        assert re.fullmatch(rf"redis://{spec.kind}:[\w-]{{32}}@127\.0\.0\.1:1002/0", redis)
        assert spec.env["INFERFLUX_METRICS_LISTEN"] == f"127.0.0.1:{spec.port}"
        assert spec.env["INFERFLUX_EXIT_WITH_PARENT"] == "true"
    assert len({spec.port for spec in services}) == 4


def test_the_gateway_calls_policy_where_policy_listens(tmp_path: Path) -> None:
    specs = by_name(made(tmp_path, StackOptions()))
    assert specs["policy"].env["INFERFLUX_POLICY_LISTEN"] == "127.0.0.1:1003"
    assert specs["policy"].env["INFERFLUX_POLICY_BOOTSTRAP_KEY"] == "ifx_key"
    assert specs["gateway"].env["INFERFLUX_POLICY_ADDRESS"] == "127.0.0.1:1003"
    assert specs["gateway"].env["INFERFLUX_GATEWAY_LISTEN"] == "127.0.0.1:1004"
    assert specs["gateway"].env["INFERFLUX_GATEWAY_HTTP_LISTEN"] == "127.0.0.1:1005"


def test_the_service_key_goes_to_policy_and_to_those_that_call_it(tmp_path: Path) -> None:
    specs = by_name(made(tmp_path, StackOptions()))
    holders = {name for name, spec in specs.items() if "between-services" in str(spec)}
    assert holders == {"policy", "gateway"}
    assert all(specs[name].env["INFERFLUX_SERVICE_KEY"] == "between-services" for name in holders)
    assert not any("between-services" in " ".join(spec.command) for spec in specs.values())


def test_with_tls_a_certificate_takes_the_place_of_the_service_key(tmp_path: Path) -> None:
    access = grant(StateDir(tmp_path), ["worker-0"], certificates=tmp_path / "tls")
    specs = by_name(made(tmp_path, StackOptions(), access=access))
    assert not any("between-services" in str(spec) for spec in specs.values())
    for name in ("policy", "gateway"):
        assert specs[name].env["INFERFLUX_TLS_CLIENT_CA"] == str(tmp_path / "tls/ca.pem")
        assert specs[name].env["INFERFLUX_TLS_CERT"] == str(tmp_path / f"tls/{name}.pem")


@pytest.mark.parametrize("is_tls", [False, True])
def test_what_a_service_needs_to_join_is_what_those_of_the_stack_were_told(
    tmp_path: Path, *, is_tls: bool
) -> None:
    access = grant(StateDir(tmp_path), ["worker-0"], certificates=tmp_path / "tls" if is_tls else None)
    specs = by_name(made(tmp_path, StackOptions(), access=access))
    kinds = joining(PORTS, access, state_dir=tmp_path, service_key="between-services")
    assert {kind for kind, variables in kinds.items() if "INFERFLUX_AUDIT_DIR" in variables} == {
        "gateway",
        "policy",
    }
    for kind, variables in kinds.items():
        told = specs["worker-0" if kind == "worker" else kind].env
        own = {"INFERFLUX_NATS_URL"} if kind == "worker" else set()
        assert variables.items() >= {k: told[k] for k in variables.keys() - own}.items(), kind


@pytest.mark.parametrize("server", ["nats", "redis"])
def test_a_password_is_in_the_environment_of_its_own_processes_alone(tmp_path: Path, server: str) -> None:
    specs = by_name(made(tmp_path, StackOptions(workers=2, schedulers=2)))
    passwords = StateDir(tmp_path).passwords(server)
    assert len(set(passwords.values())) == len(passwords)
    for user, password in passwords.items():
        holders = {name for name, spec in specs.items() if password in str(dict(spec.env))}
        is_one_workers = server == "nats" and user.startswith("worker")
        wanted = {n for n, spec in specs.items() if user == (n if is_one_workers else spec.kind)}
        assert holders == wanted, user


def test_no_password_is_on_a_command_line_or_in_what_is_printed_of_a_server(tmp_path: Path) -> None:
    specs = by_name(made(tmp_path, StackOptions()))
    for server in ("nats", "redis"):
        for password in StateDir(tmp_path).passwords(server).values():
            assert not any(password in " ".join(spec.command) for spec in specs.values())
            assert not any(password in repr(specs[name]) for name in ("nats", "valkey"))


def test_what_holds_passwords_is_for_its_owner_alone(tmp_path: Path) -> None:
    made(tmp_path, StackOptions())
    holding = [tmp_path / name for name in ("passwords.json", "nats-users.conf", "valkey/valkey.conf")]
    assert [path.stat().st_mode & 0o777 for path in holding] == [0o600] * 3


def test_passwords_are_kept_over_restarts(tmp_path: Path) -> None:
    made(tmp_path, StackOptions())
    before = StateDir(tmp_path).passwords("nats")
    made(tmp_path, StackOptions(workers=2))
    assert before.items() < StateDir(tmp_path).passwords("nats").items()


def test_the_bootstrap_key_goes_to_policy_alone(tmp_path: Path) -> None:
    holders = [
        spec.name for spec in by_name(made(tmp_path, StackOptions())).values() if "ifx_key" in str(spec)
    ]
    assert holders == ["policy"]


def test_what_is_not_asked_for_is_left_to_the_worker(tmp_path: Path) -> None:
    env = by_name(made(tmp_path, StackOptions()))["worker-0"].env
    assert env["INFERFLUX_WORKER_ID"] == "worker-0"
    assert env["INFERFLUX_WORKER_MODEL_PATH"] == "/m/demo.gguf"
    assert not {"INFERFLUX_WORKER_SLOTS", "INFERFLUX_WORKER_THREADS", "INFERFLUX_WORKER_MODEL_NAME"} & set(
        env
    )


def test_workers_keep_kv_state_below_the_state_directory_where_that_is_wanted(tmp_path: Path) -> None:
    env = by_name(made(tmp_path, StackOptions(has_disk_tier=True)))["worker-0"].env
    assert env["INFERFLUX_WORKER_DISK_PATH"] == str(tmp_path / "kv")
    assert "INFERFLUX_WORKER_DISK_PATH" not in by_name(made(tmp_path, StackOptions()))["worker-0"].env


def test_what_is_asked_for_reaches_every_worker(tmp_path: Path) -> None:
    options = StackOptions(workers=2, slots=4, threads=1, kv_cells=2048, model_name="mine")
    specs = by_name(made(tmp_path, options))
    for name in ("worker-0", "worker-1"):
        env = specs[name].env
        assert env["INFERFLUX_WORKER_SLOTS"] == "4"
        assert env["INFERFLUX_WORKER_THREADS"] == "1"
        assert env["INFERFLUX_WORKER_KV_CELLS"] == "2048"
        assert env["INFERFLUX_WORKER_MODEL_NAME"] == "mine"


@pytest.mark.parametrize(
    ("workers", "cores", "expected"), [(2, 2, "1"), (2, 8, "4"), (3, 8, "2"), (4, 2, "1"), (1, 8, None)]
)
def test_workers_of_one_machine_divide_its_cores(
    tmp_path: Path, workers: int, cores: int, expected: str | None
) -> None:
    assert threads(tmp_path, StackOptions(workers=workers), cores) == [expected] * workers


def test_a_number_of_threads_that_is_asked_for_is_not_divided(tmp_path: Path) -> None:
    assert threads(tmp_path, StackOptions(workers=2, threads=8), 8) == ["8", "8"]
    assert threads(tmp_path, StackOptions(workers=2, divides_cores=False), 8) == [None, None]
    of_one = StackOptions(workers=2, service_env={"worker-1": {THREADS: "3"}})
    assert threads(tmp_path, of_one, 8) == ["4", "3"]


def test_workers_divide_the_cpus_that_are_theirs(tmp_path: Path) -> None:
    of_all = StackOptions(workers=2, cpus={"worker": frozenset(range(4))})
    assert threads(tmp_path, of_all, 8) == ["2", "2"]
    of_one = StackOptions(workers=2, cpus={"worker": frozenset({1}), "worker-0": frozenset({0})})
    assert threads(tmp_path, of_one, 8) == [None, "1"]


def test_settings_of_one_process_come_before_those_of_its_kind(tmp_path: Path) -> None:
    options = StackOptions(
        workers=2,
        env={"A": "all"},
        service_env={"worker": {"A": "workers", "B": "workers"}, "worker-1": {"A": "one"}},
    )
    specs = by_name(made(tmp_path, options))
    assert specs["gateway"].env["A"] == "all"
    assert specs["worker-0"].env["A"] == "workers"
    assert (specs["worker-1"].env["A"], specs["worker-1"].env["B"]) == ("one", "workers")


@pytest.mark.parametrize(("name", "cpus"), [("worker-0", {0}), ("worker-1", {1}), ("nats", None)])
def test_cpus_are_given_by_process_or_by_kind(tmp_path: Path, name: str, cpus: set[int] | None) -> None:
    options = StackOptions(workers=2, cpus={"worker": frozenset({1}), "worker-0": frozenset({0})})
    assert by_name(made(tmp_path, options))[name].cpus == cpus
