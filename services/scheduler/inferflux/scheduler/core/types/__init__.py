"""A job, the actions that follow from it, and the numbers that the core decides by (pure)."""
