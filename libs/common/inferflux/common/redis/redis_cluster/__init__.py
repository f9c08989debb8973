"""A client of a Redis Cluster: each command goes to the server that has its key."""
