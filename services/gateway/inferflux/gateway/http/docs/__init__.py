"""The OpenAPI document of the HTTP front, and its page."""
