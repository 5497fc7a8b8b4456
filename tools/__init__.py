"""Programs of the maintainers: pages, comparisons, measurements, rehearsals."""
