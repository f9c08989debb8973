"""Redis as the storage: its table, and the layout that it had before."""
