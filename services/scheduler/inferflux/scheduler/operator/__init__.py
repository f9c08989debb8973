"""Operators' requests to a scheduler."""
