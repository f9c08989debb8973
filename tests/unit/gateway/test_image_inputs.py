"""Files that clients spell as text."""

from __future__ import annotations

import base64

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.images.inputs import from_base64

FILE = bytes(range(256))


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(FILE).decode(),
        base64.encodebytes(FILE).decode(),
        base64.urlsafe_b64encode(FILE).decode(),
    ],
)
def test_a_file_may_be_in_lines_or_in_the_letters_of_urls(text: str) -> None:
    assert from_base64(text, field="f") == FILE


@pytest.mark.parametrize("text", ["A", "A!==", "äöü=", "QUI"])
def test_what_is_no_base64_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        from_base64(text, field="f", reason="BAD_IMAGE")
    assert (refused.value.field, refused.value.reason) == ("f", "BAD_IMAGE")
