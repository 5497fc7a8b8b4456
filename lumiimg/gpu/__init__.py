"""GPU code in files: what it says it runs on, and which GPU takes it. Heads are read, never the code."""
