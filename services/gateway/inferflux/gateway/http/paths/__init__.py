"""The paths of the HTTP front, a module each."""
