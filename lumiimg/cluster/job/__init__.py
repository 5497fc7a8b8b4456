"""`lumiimg job`: a job script for an image on a site, for Slurm or PBS."""
