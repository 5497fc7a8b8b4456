"""`lumiimg check --nodes N`: one image on every node of a job, and what the nodes come to together."""
