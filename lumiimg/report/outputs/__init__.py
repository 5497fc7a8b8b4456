"""What each kind of output is made of: the types are the schemas."""
