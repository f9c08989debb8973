"""Calls of every kind, most of them odd, at gateway and policy."""
