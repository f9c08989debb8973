"""Who waits how long on the real stack, and what is lost when a part of it is killed."""
