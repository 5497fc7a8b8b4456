"""What `make rehearse` tries the catalogue on: the real package index, and stand-ins for what cannot be had everywhere."""
