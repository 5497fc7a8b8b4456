"""`lumiimg check --nodes N`: check one image on every node of a job, and combine the nodes' answers."""
