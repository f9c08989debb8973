"""The Redis client: one server, sentinels or a cluster behind one URL."""
