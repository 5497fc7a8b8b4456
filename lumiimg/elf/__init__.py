"""What an ELF file says, and what glibc's dynamic loader would do with it over a root file system."""
