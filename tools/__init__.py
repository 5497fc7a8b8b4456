"""Programs of the maintainers: pages, comparisons, measurements, mutants, rehearsals."""

AS_OF = "2026-11-24"
"""The day by which facts are old in the pages that are written here and in the tests: else they would differ each day."""
