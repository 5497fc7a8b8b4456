"""`lumiimg module`: module files and wrappers, by which an image is used like a program."""
