"""How a command reaches a gateway, and how it says that it could not."""
