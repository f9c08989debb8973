"""How a command says that it could not do what was asked."""

from __future__ import annotations


class CommandError(Exception):
    """Ends a command: its message goes to stderr as it is, and the exit status is 1."""
