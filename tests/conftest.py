"""Real servers for every test that needs one: each on a free port, in a temporary directory.

They end with the tests, whatever happens: by the fixtures, and by the kernel when pytest itself dies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from harness import hangs, profiles, starting
from harness.distribution import CrashproofFiles
from harness.durations import DurationsByFile
from harness.order import PROCESS_LEVELS, interleaved, level_of
from harness.servers import ServerProcess
from xdist.remote import Producer

from inferflux.common.bus import Bus
from tools.house import report

profiles.register()

# Tests share the cores with each other: a thread of llama.cpp that spins at a barrier takes the time of the
# thread it waits for. Set before llama.cpp is loaded, here and in every child.
os.environ.setdefault("GOMP_SPINCOUNT", "0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plain-starts", action="store_true", help="start each process by `python -m`")
    parser.addoption("--house", action="store_true", help="print the measures of the source tree at the end")
    parser.addoption("--durations-by-file", type=Path, metavar="FILE", help="write what files of tests take")


def pytest_configure(config: pytest.Config) -> None:
    hangs.configure(config)
    starting.adopt_stacks()
    if config.getoption("plain_starts"):
        starting.use_plain_starts()
    file = config.getoption("durations_by_file")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationsByFile(file))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("house"):
        terminalreporter.section("the house: python -m tools.house")
        terminalreporter.write_line(report.text(report.rows()))
        terminalreporter.write_line("A report: it fails no test. docs/contributing.md explains it.")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that services run on."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> CrashproofFiles | None:
    return CrashproofFiles(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where files run side by side.

    E2e tests, which compute, run beside integration tests, which wait. A test of processes that fails has a
    second try, since what ran beside it may have taken its time; the summary names it.
    """
    if hasattr(config, "workerinput"):
        items[:] = interleaved(items, lambda item: (level_of(item.path), item.path))
        for item in items:
            if level_of(item.path) in PROCESS_LEVELS:
                item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=["from pytest-timeout"]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    hangs.watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    hangs.watch(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Watched anew: pytest unwatches where a test fails, and fixtures may hang after it."""
    hangs.watch(item)
    yield
    hangs.unwatch()


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A nats-server with JetStream for the whole session: use subjects and ids of your own."""
    yield from _url(ServerProcess.nats(tmp_path_factory.mktemp("nats")))


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A valkey-server for the whole session: use keys of your own."""
    yield from _url(ServerProcess.valkey(tmp_path_factory.mktemp("valkey")))


@pytest.fixture
def private_nats(tmp_path: Path) -> Iterator[ServerProcess]:
    """A nats-server that the test may kill and restart."""
    yield from _running(ServerProcess.nats(tmp_path / "nats"))


@pytest.fixture
def private_valkey(tmp_path: Path) -> Iterator[ServerProcess]:
    """A valkey-server that the test may kill and restart."""
    yield from _running(ServerProcess.valkey(tmp_path / "valkey"))


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connection to the session's nats-server."""
    connection = await Bus.connect(nats_url, name="test")
    yield connection
    await connection.close()


def _running(server: ServerProcess) -> Iterator[ServerProcess]:
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()


def _url(server: ServerProcess) -> Iterator[str]:
    for running in _running(server):
        yield running.url
