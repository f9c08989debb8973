"""The images and containers themselves."""

from __future__ import annotations

import pytest

from compose.engine import SERVICES, Compose, run
from compose.load import Answers
from compose.notes import Notes

OURS = ("policy", "scheduler", "worker", "gateway")


@pytest.mark.parametrize("service", OURS)
async def test_an_image_holds_no_library_twice(compose: Compose, service: str, notes: Notes) -> None:
    image = f"inferflux/{service}"
    find = "find /opt /app -type f -name '*.so*' -size +32k -exec sha256sum {} +"
    listed = await run("docker", "run", "--rm", "--network", "none", image, "sh", "-c", find)
    by_digest: dict[str, list[str]] = {}
    for line in listed.splitlines():
        digest, path = line.split(maxsplit=1)
        by_digest.setdefault(digest, []).append(path)
    assert by_digest
    assert not [paths for paths in by_digest.values() if len(paths) > 1]
    size = int(await run("docker", "image", "inspect", "--format", "{{.Size}}", image))
    notes.add(f"image of {service}: {size / 1e6:.0f} MB")


async def test_everything_becomes_healthy_at_the_first_attempt(stack: Compose) -> None:
    for container in await stack.containers():
        described = await container.inspect()
        assert await container.is_healthy()
        assert described["RestartCount"] == 0


@pytest.mark.parametrize("service", SERVICES)
async def test_a_container_is_confined(stack: Compose, service: str) -> None:
    containers = await stack.containers(service)
    assert len(containers) == (2 if service in {"scheduler", "worker"} else 1)
    for container in containers:
        described = await container.inspect()
        host = described["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert host["Memory"] >= 512 << 20
        assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}}
        assert described["Config"]["Healthcheck"]["Test"]
        assert described["Config"]["Healthcheck"]["StartInterval"] == 1_000_000_000
        status = await run("grep", "-E", "^(Uid|CapEff|NoNewPrivs):", f"/proc/{await container.pid()}/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert fields["Uid"].split("\t")[0] != "0"
        assert int(fields["CapEff"], 16) == 0
        assert fields["NoNewPrivs"] == "1"


async def test_the_gateway_alone_can_be_reached_from_this_machine(stack: Compose) -> None:
    for container in await stack.containers():
        bindings = (await container.inspect())["HostConfig"]["PortBindings"] or {}
        assert set(bindings) == ({"50051/tcp", "8080/tcp"} if container.service == "gateway" else set())
        assert all(binding["HostIp"] == "127.0.0.1" for each in bindings.values() for binding in each)


async def test_an_engine_takes_its_threads_from_the_containers_quota(stack: Compose) -> None:
    ask = "from inferflux.common.process.machine.cores import usable_cores; print(usable_cores())"
    for worker in await stack.containers("worker"):
        assert await worker.execute("python", "-c", ask) == "1"


async def test_the_answers_are_those_of_the_model(expected: Answers) -> None:
    assert len({tuple(ids) for ids in expected.values()}) == len(expected)
