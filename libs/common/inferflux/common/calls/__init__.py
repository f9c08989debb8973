"""Calls over gRPC: the server, the client, and what is checked around each call."""
