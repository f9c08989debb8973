"""Findings about facts. Pure."""
