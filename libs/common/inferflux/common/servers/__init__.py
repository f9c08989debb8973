"""Users of NATS and Redis, and the files that servers of a fleet are configured with."""
