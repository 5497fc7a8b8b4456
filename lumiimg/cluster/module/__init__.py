"""`lumiimg module`: module files and wrappers, with which an image is used like an installed program."""
