"""What InferFlux and its clients agree on, beside the messages of `inferflux.v1`: pure, but for protobuf."""
