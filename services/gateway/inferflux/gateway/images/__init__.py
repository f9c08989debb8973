"""Images that clients send: fetched, decoded in a child process, and stored where workers find them."""
