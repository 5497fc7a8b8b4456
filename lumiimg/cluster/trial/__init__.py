"""`lumiimg trial`: what lumiimg claims of a machine and of images, beside what the machine shows."""
