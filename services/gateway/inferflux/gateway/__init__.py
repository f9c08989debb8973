"""Gateway: authenticates callers, prepares their requests, and streams answers back over gRPC and HTTP."""
