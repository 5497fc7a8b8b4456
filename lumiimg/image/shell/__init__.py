"""Shell text that is read and never run."""
