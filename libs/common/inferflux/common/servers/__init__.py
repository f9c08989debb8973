"""NATS and Redis servers on one machine, and the users that each process has there."""
