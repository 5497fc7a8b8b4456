"""Programs of the maintainers: pages, comparisons, measurements, mutants, rehearsals."""
