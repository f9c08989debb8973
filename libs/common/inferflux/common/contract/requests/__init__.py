"""Ranges and forms of what a request may ask for (pure)."""
