"""What strangers can do to a gateway's clients."""
