"""Print digests of start-up code in unpacked distributions, for lumiimg/host/startup_code.toml.

python -m tools.startup_code FOLDER...     each is named NAME-VERSION: pip install --no-deps --target NAME-VERSION NAME==VERSION

Only digests missing from the table are printed. Somebody must read the code before a digest is added.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from lumiimg.host.code_names import facts, read_code


def _whole(text: str) -> str:
    return text


def _with_call(text: str) -> str:
    return f"{text}\ninstall(0)\n"


def _inside_uv(text: str) -> str:
    end = "sys.meta_path.insert(0, _Finder())"
    begin = text.rfind('"""Patches', 0, text.find(end))
    return text[begin : text.find(end)] + end if begin >= 0 else ""


def _finder(text: str) -> str:
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    templates = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    template = templates.get("_FINDER_TEMPLATE")
    return ast.literal_eval(template).format(mapping={}, namespaces={}, name="") if template else ""


PLACES: dict[str, Callable[[str], str]] = {
    "_distutils_hack/__init__.py": _whole,
    "bin/uv": _inside_uv,
    "editables/__init__.py": _whole,
    "editables/redirector.py": _whole,
    "scikit_build_core/resources/_editable_redirect.py": _with_call,
    "setuptools/command/editable_wheel.py": _finder,
    "virtualenv/create/via_global_ref/_virtualenv.py": _whole,
}
"""Files of distributions with code that runs when Python starts, and functions that return it as installed."""


def rows(folders: list[Path]) -> Iterator[tuple[str, str, str]]:
    """Yield (digest, file, distribution with its version) of each piece of code."""
    for folder in folders:
        for place, written in PLACES.items():
            if (folder / place).exists() and (text := written((folder / place).read_bytes().decode("utf-8", "ignore"))):
                yield read_code(text, place).digest, place, folder.name.replace("-", " ")


def main(words: list[str]) -> int:
    for digest, place, name in rows([Path(word) for word in words]):
        if digest not in facts().templates[place]:
            print(f'"{place}": "{digest}"  # {name}')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
