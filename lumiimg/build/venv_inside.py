"""Runs in the container, by the image's Python: makes an environment on top of it, or lists the packages of one.

Usage: venv_inside.py make FOLDER, or venv_inside.py list, which prints the packages as JSON in the last line.
It is self-contained, for Python 3.8 and newer.
"""

from __future__ import annotations

import json
import re
import site
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

_MAX_SCRIPT_BYTES = 64 * 1024


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _installed_versions() -> dict[str, str]:
    """Return the versions of the distributions that this Python imports; the first of a name counts."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        if one.metadata["Name"]:
            found.setdefault(_name(one.metadata["Name"]), one.version)
    return found


def _make(folder: Path) -> None:
    own = site.getsitepackages([sys.base_prefix])
    venv.create(folder, system_site_packages=any(path in sys.path for path in own), symlinks=True, with_pip=False)
    if sys.prefix != sys.base_prefix:
        # the image's Python is itself an environment, which a venv bypasses: it uses the underlying Python
        library = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        text = "".join(f"import site; site.addsitedir({path!r})\n" for path in paths)
        (library / "_image.pth").write_text(text, encoding="utf-8")
    _copy_scripts(folder / "bin", folder / "bin" / "python")


def _copy_scripts(folder: Path, python: Path) -> None:
    """Copy the image's Python scripts (torchrun, vllm) to be run by the environment's Python.

    The originals name the image's Python, which does not see the environment's packages.
    """
    scripts = Path(sysconfig.get_path("scripts"))
    entries = (entry for one in metadata.distributions() for entry in one.entry_points)
    for name in {entry.name for entry in entries if entry.group == "console_scripts"}:
        source, target = scripts / name, folder / name
        if "/" in name or not source.is_file() or target.is_symlink() or target.exists():
            continue
        first, _, text = source.read_bytes()[:_MAX_SCRIPT_BYTES].partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            target.write_bytes(f"#!{python}\n".encode() + text)
            target.chmod(0o755)


def main() -> None:
    """Run the command in the arguments."""
    if sys.argv[1] == "make":
        _make(Path(sys.argv[2]))
        return
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sys.stdout.write(f"\n{json.dumps({'python': python, 'there': _installed_versions()})}\n")


if __name__ == "__main__":
    main()
