"""Bodies of forms: `multipart/form-data`, RFC 7578. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

from inferflux.common.contract.errors import InvalidArgument

# RFC 2046's bound of a boundary.
_MOST_BOUNDARY = 70
_MOST_HEADER_BYTES = 4096
_MOST_PARTS = 64


@dataclass(frozen=True, slots=True)
class FormPart:
    """A field of a form."""

    name: str
    filename: str
    data: bytes


def parse_form(body: bytes, content_type: str) -> list[FormPart]:
    """The parts of a form in order.

    Args:
        content_type: of the call.

    Raises:
        InvalidArgument: it is no form, or damaged.
    """
    head = _head(content_type)
    boundary = head.get_param("boundary")
    is_form = head.get_content_type() == "multipart/form-data"
    if not is_form or not isinstance(boundary, str) or not 0 < len(boundary) <= _MOST_BOUNDARY:
        raise InvalidArgument("the body is no multipart/form-data with a boundary", reason="INVALID_FORM")
    return list(_parts(body, boundary.encode()))


def _parts(body: bytes, boundary: bytes) -> Iterator[FormPart]:
    pieces = re.split(rb"(?:\A|\r\n)--" + re.escape(boundary), body, maxsplit=_MOST_PARTS + 2)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise InvalidArgument("the form has no end, or too many parts", reason="INVALID_FORM")
    for piece in pieces[1:-1]:
        header, found, data = piece.partition(b"\r\n\r\n")
        if not found or len(header) > _MOST_HEADER_BYTES:
            raise InvalidArgument("a part of the form has no header", reason="INVALID_FORM")
        said = next(
            (line for line in header.split(b"\r\n") if line.lower().startswith(b"content-disposition:")), b""
        )
        disposition = _head(said.partition(b":")[2].decode("utf-8", "replace").strip())
        name, filename = disposition.get_param("name"), disposition.get_param("filename")
        if not isinstance(name, str):
            raise InvalidArgument("a part of the form has no name", reason="INVALID_FORM")
        yield FormPart(name, filename if isinstance(filename, str) else "", data)


def _head(value: str) -> Message:
    """A header with parameters; the parser of mail knows how they are quoted."""
    head = Message()
    head["content-type"] = value.replace("\r", " ").replace("\n", " ")
    return head
