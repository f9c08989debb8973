"""The way to the policy service: admission, reservations, settlements."""
