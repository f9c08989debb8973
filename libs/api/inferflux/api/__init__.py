"""Contract of InferFlux and its clients, beside the messages of `inferflux.v1`: pure, but for protobuf."""
