"""What NCCL, RCCL, the OFI plugins and libfabric print: lines -> sightings -> verdict -> cause and remedy."""
