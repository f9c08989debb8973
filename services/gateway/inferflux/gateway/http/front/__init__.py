"""A connection and its calls, before anything is known of their bodies."""
