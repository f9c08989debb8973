"""Errors in the shape that each API's clients read (pure)."""
