"""Writes the tables of docs/ that come from the code: settings, metrics, options, access."""
