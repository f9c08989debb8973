"""A lease on leadership, and which scheduler should have it (pure)."""
