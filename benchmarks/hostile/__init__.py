"""Attacks by strangers on a gateway, and how its clients fare meanwhile."""
