"""What is made of JetStream's refusals."""

from __future__ import annotations

import pytest

from inferflux.common.bus.link import ApiError


@pytest.mark.parametrize("err_code", [10008, 10009, 10096, 10118, 10158])
def test_what_servers_say_while_they_start_or_elect_passes(err_code: int) -> None:
    error = ApiError("CONSUMER.CREATE", 500, err_code, "stream not valid")
    assert error.to_error().reason == "JETSTREAM_ELECTING"
