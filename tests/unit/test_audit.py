"""The audit of what is installed: what it finds, and that nobody's silence is taken for a good word."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tools.audit import judge_advisories

ROOT = Path(__file__).parents[2]


def test_packages_that_nobody_could_be_asked_about_are_not_good() -> None:
    document = {
        "dependencies": [
            {"name": "Snake", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
            {"name": "egg", "skip_reason": "not found"},
            {"name": "pip", "version": "1", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]},
            {"name": "lumiimg", "skip_reason": "editable"},
        ]
    }
    assert judge_advisories(document) == (["Snake 1: PYSEC-1; mended in 2"], ["egg"])


def test_each_dependency_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    tables = tomllib.loads(text)["project"]
    lists = {"dependencies": tables["dependencies"], **tables["optional-dependencies"]}
    lines = text.splitlines()
    for name, requirements in lists.items():
        for requirement in requirements:
            found = [n for n, line in enumerate(lines) if f'"{requirement}"' in line]
            reasons = [lines[at - 1 : at + 1] for at in found]
            assert any(re.search(r"#.{8,}", "\n".join(pair)) for pair in reasons), f"{name}: {requirement}"
