"""The promises of docs/security.md, and the tests that hold them (`pytest.mark.threat`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROMISE = re.compile(r"^- \*\*(S\d\d)\*\* ", re.MULTILINE)


def promises() -> list[str]:
    """Return the numbers of the promises, as the page has them."""
    return _PROMISE.findall((ROOT / "docs" / "security.md").read_text())


def marked() -> set[tuple[str, str, str]]:
    """Return promise, file and name of every test that carries a promise's number."""
    found = set()
    for file in sorted((ROOT / "tests").glob("*/test_*.py")):
        text = file.read_text()
        if "mark.threat" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.threat":
                    for number in decorator.args:
                        found.add((ast.literal_eval(number), f"{file.parent.name}/{file.name}", node.name))
    return found
