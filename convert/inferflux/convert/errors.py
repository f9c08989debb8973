"""Errors of a conversion."""

from __future__ import annotations


class ConversionError(Exception):
    """The folder is not a model that can be converted; names the file and the field."""
