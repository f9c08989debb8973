"""Leadership of partitions: which scheduler leads which, and what a new leader takes over."""
