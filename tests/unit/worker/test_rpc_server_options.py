"""What `inferctl rpc-server` is asked for."""

from __future__ import annotations

import pytest

from inferflux.worker.rpc_server import (
    DEFAULT_LISTEN,
    Options,
    RpcServerOptionsError,
    check_listen,
    is_loopback,
    parse,
)


def test_it_listens_on_loopback_by_default() -> None:
    assert parse([]) == Options(DEFAULT_LISTEN, (), 0, "")
    assert is_loopback(DEFAULT_LISTEN.partition(":")[0])


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("localhost", True), ("0.0.0.0", False), ("gpu-2", False)],  # noqa: S104
)
def test_loopback_is_told_from_what_others_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_devices_may_be_several() -> None:
    assert parse(["--device", "CUDA0", "--device", "CPU"]).devices == ("CUDA0", "CPU")


@pytest.mark.parametrize("listen", ["", "host", ":1", "127.0.0.1:0", "[::1]:50061", "127.0.0.1:70000"])
def test_an_address_that_ggml_cannot_take_is_refused_by_the_flag(listen: str) -> None:
    with pytest.raises(RpcServerOptionsError, match="--listen"):
        check_listen(listen)
