"""Images and sounds: encoded beside the steps, and kept by their ids."""
