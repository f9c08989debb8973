"""Writes the tables of docs/operations.md that come from the code: settings, metrics, options."""
