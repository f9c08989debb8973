"""The models of one host: loaded, unloaded, and reported to the scheduler."""
