"""Faults of a tokenizer process: what it cannot do, and whose fault that is."""

from __future__ import annotations

from inferflux.v1 import tokenizer_pb2


class TokenizerFaultError(Exception):
    """A request to the tokenizer process that cannot be fulfilled.

    Attributes:
        field: of the request, that is at fault; empty: the one that the caller knows.
    """

    def __init__(self, fault: tokenizer_pb2.TokenizerFault.ValueType, message: str, field: str = "") -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.field = field
