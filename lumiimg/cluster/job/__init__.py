"""`lumiimg job`: a script for an image on a site, for Slurm or PBS."""
