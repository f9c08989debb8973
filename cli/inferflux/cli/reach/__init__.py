"""Access of a command to a gateway, and its errors."""
