"""Waits on the real stack, and losses when a part of it is killed."""
