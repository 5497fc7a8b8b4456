"""All targets, by the room whose parsers they call."""
