"""Tables, bars and words on the terminal."""
