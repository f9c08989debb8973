"""Decision backends: what decides about calls beside policy itself, and in which order."""
