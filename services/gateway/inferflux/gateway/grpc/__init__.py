"""The gRPC front: each service's methods, translated to requests and back."""
