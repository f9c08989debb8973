"""KV cells and states outside of a context, counted and described (pure)."""
