"""The manual pages: what the program says today, without a complaint of mandoc, with every variable that is honoured."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.shared.programs import needs
from tools.manpages import ENVIRONMENT, FOLDER, pages

PACKAGE = Path(__file__).parents[2] / "lumiimg"
SET_BY_JOBS = {"LUMIIMG_JOB", "LUMIIMG_NODES", "LUMIIMG_TASKS", "LUMIIMG_NUMBER"}
"""Names of our own scripts among themselves; what a user sets does not reach them."""


def test_the_pages_are_what_the_program_says() -> None:
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == pages(), "run `make docs`"


def test_no_page_makes_mandoc_complain() -> None:
    needs("mandoc")
    files = sorted(FOLDER.glob("*.1"))
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *files], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_page_is_read_as_it_was_meant() -> None:
    needs("mandoc")
    page = FOLDER / "lumiimg-check.1"
    done = subprocess.run(["mandoc", "-T", "utf8", page], capture_output=True, text=True, check=True)
    text = re.sub(r".\x08", "", done.stdout)
    sections = re.findall(r"^[A-Z][A-Z ]+$", text, re.MULTILINE)
    assert sections == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "NOTES", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO",
    ]  # fmt: skip
    assert "lumiimg check image.sif --nodes 64" in text, "hyphens are those of a command line"
    assert "0 no obstacle found at this level" in text
    assert max(map(len, text.splitlines())) <= 90


def test_every_variable_in_the_manual_is_honoured_and_every_one_of_ours_is_in_it() -> None:
    code = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    honoured = set(re.findall(r"""(?:environment|environ)(?:\.get\(|\[)"(\w+)"|^VENV = "(\w+)\"""", code, re.MULTILINE))
    names = {one or other for one, other in honoured}
    by_rich = {"NO_COLOR"}
    assert set(ENVIRONMENT) <= names | by_rich
    ours = {name for name in names if name.startswith("LUMIIMG_")}
    assert ours == {name for name in ENVIRONMENT if name.startswith("LUMIIMG_")}
    exported = set(re.findall(r"export (LUMIIMG_\w+)=", code)) - {"LUMIIMG_HERE", "LUMIIMG_BELOW"}
    assert exported <= SET_BY_JOBS
