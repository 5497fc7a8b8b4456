"""Fuzzing: a target for each parser of foreign bytes, a stored corpus, and programs that extend it.

    make test       each target: the corpus, and some fixed mutations of it (tests/unit/test_fuzz.py)
    make fuzz       the same with many more mutations and a new seed each time (python -m tests.fuzz)
    make corpus     searches for inputs that reach more code, by coverage (python -m tests.fuzz.grow)

CONTRIBUTING.md explains how to add a target and how to store a find.
"""
