"""The audit of what is installed: what it finds, and that nobody's silence is taken for a good word."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tools.audit import Audit, judge_advisories, wrong_licences

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "tools/audit.toml").read_text())


def package(folder: Path, *fields: str) -> metadata.Distribution:
    """An installed package."""
    info = folder / "snake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", "Name: snake", "Version: 1.0", *fields, ""]))
    return metadata.PathDistribution(info)


@pytest.mark.parametrize(
    ("fields", "users", "is_allowed"),
    [
        (["License-Expression: MIT"], True, True),
        (["License-Expression: GPL-3.0-only OR BSD-2-Clause"], True, True),
        (["License-Expression: MIT AND GPL-3.0-only"], True, False),
        (["License-Expression: MPL-2.0"], False, True),
        (["License-Expression: MPL-2.0"], True, False),
        (["Classifier: License :: OSI Approved :: BSD License"], True, True),
        (["License: Apache 2.0"], True, True),
        (["Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)"], False, False),
        ([], False, False),
    ],
)
def test_a_licence_that_does_not_go_with_ours_is_named(
    tmp_path: Path, fields: list[str], users: bool, is_allowed: bool
) -> None:
    found = list(wrong_licences([package(tmp_path, *fields)], {"snake"} if users else set(), TABLE))
    assert (found == []) is is_allowed
    assert all(one.startswith("snake: its licence is ") for one in found)


def test_packages_that_nobody_could_be_asked_about_are_not_good() -> None:
    names = {"snake", "egg", "ham"}
    document = {
        "dependencies": [
            {"name": "Snake", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
            {"name": "egg", "skip_reason": "not found"},
            {"name": "pip", "skip_reason": "not ours"},
        ]
    }
    problems, unasked = judge_advisories(document, names)
    assert problems == ["Snake 1: PYSEC-1; mended in 2"]
    assert unasked == ["egg", "ham"]
    assert (Audit().exit_code, Audit(open=["x"]).exit_code, Audit(["x"], ["x"]).exit_code) == (0, 3, 1)


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
