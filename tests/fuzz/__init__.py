"""Fuzzing: one target a parser of foreign bytes, a corpus that is stored, and what makes more of it.

    make test       each target: the corpus, and some mutations of it, the same each time (tests/unit/test_fuzz.py)
    make fuzz       the same with many more, another seed each time (python -m tests.fuzz)
    make corpus     inputs that reach more code, by coverage (python -m tests.fuzz.grow)

CONTRIBUTING.md says how to add a target and how to keep a find.
"""
