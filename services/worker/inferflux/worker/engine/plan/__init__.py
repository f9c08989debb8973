"""Resident requests, and which of their tokens the next batch has (pure)."""
