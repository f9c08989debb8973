"""The scheduler's I/O: what it receives, and the actions that it performs."""
