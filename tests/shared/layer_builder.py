"""Small layer folders for tests to break, a site, and values that are hard to write into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request

if TYPE_CHECKING:
    from lumiimg.resolve.lock import Lock

LAYER = """\
kind = "layer"
summary = "A layer of the tests"
source = "the tests"
date = 2026-11-21
"""
BASE = LAYER.replace('"layer"', '"base"', 1) + '[[bootstrap]]\nagent = "docker"\nfrom = "busybox"\n'
BOX = BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39" }\n[[', 1)
"""A base with a Python."""


class MakeLayer(Protocol):
    def __call__(self, name: str, toml: str = ..., *, post: str = ..., **files: str) -> Path: ...


def catalogue_of(layers: Path, **tables: str) -> Catalogue:
    """Write layers that do nothing, each with its layer.toml; return a catalogue of only these."""
    for name, toml in tables.items():
        (layers / name).mkdir()
        (layers / name / "layer.toml").write_text(toml)
        (layers / name / "post.sh").write_text("true\n")
    return Catalogue((layers,), ())


def locked(catalogue: Catalogue, base: str, *add: str, **fields: Any) -> Lock:
    """Return the lock of a request, without a machine or network. Raises what `Plan.require_lock` raises."""
    return decide(Request(base, add, **fields), PlanContext(catalogue)).require_lock()


ODD = [
    *("", "a b", "it's", '"', "$(id)", "`id`", "a\nb", "%post\n", "{{x}}", "{{{", "\\", "\t", "ä€😀", "\x01ab"),
    *("!", "*", "\r\n", "\x1b[2J", "\u2028", "\x85", "\x7f", "-n", "~", "a=b", "Bootstrap: docker", "#"),
    *("${HOME}", "\\\n", "'\"'\"'"),
]
FREE = (
    LAYER
    + '[arguments.NOTE]\ndefault = ""\nhelp = "free"\n[environment.set]\nV = "{NOTE}"\n[environment.prepend]\nW = "{NOTE}"\n'
)


SITE = """\
title = "a site of the tests"
arch = "gfx90a"
source = "the tests"
date = 2026-11-21
[driver]
name = "a driver"
rocm = "rocm>=6.0,<8"
source = "the tests"
date = 2026-11-21
[fabric]
slingshot = "12.0"
libfabric = "1.22.0"
glibc = "2.38"
source = "the tests"
date = 2026-11-21
"""


RECIPES = ("lumi-pytorch", "lumi-vllm", "lumi-deepspeed", "lumi-julia", "rccl-only")
