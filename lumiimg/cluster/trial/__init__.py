"""`lumiimg trial`: compare lumiimg's claims about a machine and images with measurements on the machine."""
