"""A Dockerfile, read as Docker would build it, and written as the draft of a layer."""
