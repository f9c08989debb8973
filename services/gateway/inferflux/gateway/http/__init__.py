"""The HTTP front of the gateway: OpenAI's API over the same pipeline that gRPC calls."""
