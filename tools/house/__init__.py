"""Measures the source tree against its bars, and says which rule of its rooms is broken where."""
