"""Order of the waiting requests, and the service that each tenant has had (pure)."""
