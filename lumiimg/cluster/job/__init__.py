"""`lumiimg job`: a script for an image on a site, for Slurm, PBS, or Slurm with EDF files."""
