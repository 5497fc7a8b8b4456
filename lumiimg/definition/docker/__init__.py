"""A Dockerfile: what the catalogue has of it, and the draft of a layer for the rest."""
