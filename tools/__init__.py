"""Programs for maintainers: pages, comparisons, measurements, rehearsals."""
