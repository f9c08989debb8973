"""Suites and clients that others wrote, run against a stack: `make suites`."""
