"""Write what lumiimg leaves behind, for the lumiimg of later: `python -m tests.written`, once for each release.

The files go to tests/fixtures/written/VERSION; tests/unit/test_upgrades.py reads those of every version with today's code.
docs/upgrading.md says what is promised.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from lumiimg import __version__
from lumiimg.build.cache import CacheKey, LayerCache
from lumiimg.build.provenance import PLAN, SBOM, carried_files, write_folder
from lumiimg.catalog.catalogue import Catalogue
from lumiimg.cli.main import main
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import write_snapshot
from lumiimg.image import open_image
from lumiimg.image.sif import SifHeader, write_sif
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock_file import to_record
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.fuzz.locks import with_digests
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER
from tests.shared.programs import squashed
from tests.shared.world import World, serve

WRITTEN = Path(__file__).parents[1] / "tests" / "fixtures" / "written"
LAYERS = {
    "box": BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39" }\n[[', 1),
    "snake": LAYER + '[[release]]\nversion = "2.0"\nwheels = ["snake==2.0+rocm6.4"]\nsource = "the tests"\n'
    'indexes = ["https://download.pytorch.org/whl/rocm6.4"]\n',
    "tool": LAYER
    + 'files = ["tool.c"]\n[sources.tool]\nurl = "https://github.com/x/tool/archive/v1.tar.gz"\nfile = "tool.tar.gz"\n'
    f'key = "1"\nsource = "the tests"\n[sources.tool.sha256]\n1 = "{"0" * 64}"\n',
}
BELOW = "1" * 64
DATA = b"what a layer changed\n"


def layers(folder: Path) -> Path:
    """Write layer folders that stay as they are, whatever becomes of those that come with lumiimg."""
    for name, text in LAYERS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "layer.toml").write_text(text)
        (folder / name / "post.sh").write_text(f"echo {name}\n")
    (folder / "tool/tool.c").write_text("int x;\n")
    return folder


def lock(folder: Path, layer_folder: Path) -> None:
    """Lock a base by digest, wheels with what they require, and an archive."""
    world = World(of_layers={"snake": {"2.0+rocm6.4": ("egg",)}}, wheels={"egg": {"1.0": ()}})
    words = ["lock", "-o", str(folder / "lumiimg.lock"), "--layers", str(layer_folder)]
    with serve(world):
        code = main([*words, *world.mirrors, "--base", "box", "--add", "snake", "--add", "tool", "--site", "generic"])
    if code != 0:
        sys.exit(code)


def host(folder: Path, scratch: Path) -> None:
    """Take a snapshot of a made-up node."""
    with open_image(fabric_builder.host(scratch / "host")) as root:
        seen = scan_host({}, root=root.root)
    seen = replace(seen, taken="2026-11-22T10:00:00+00:00", host="nid005000", kernel="5.14.21", cpu=None)
    write_snapshot(seen, folder / "host.json")


def cache(folder: Path) -> None:
    """Keep the result of a layer, and what a script compiled."""
    kept = LayerCache(folder / "cache")
    for name, below in (("data.sqfs", BELOW), ("data.tar", "")):
        key = CacheKey({"format": name, "definition": "Bootstrap: docker\n", "content": below})
        with kept.building() as work:
            (work / name).write_bytes(DATA)
            kept.store(key, work / name, layers=("tool",), seconds=2.0)
    (folder / "cache/work").rmdir()


def image(folder: Path, layer_folder: Path, scratch: Path) -> None:
    """Write an image that says how it was built, and has nothing else in it."""
    made = with_digests(decide(Request("box", ("tool",)), PlanContext(Catalogue((layer_folder,), ()))).require_lock())
    write_folder(scratch / "root", carried_files(made), {})
    header = SifHeader("Bootstrap: docker\nFrom: x\n", {PLAN: to_record(made), SBOM: b"{}"})
    target = folder / "image"
    squashed(scratch / "root", target, offset=header.size_bytes)
    write_sif(target, header, identity="one")


def module(folder: Path, scratch: Path) -> None:
    """Write a module."""
    made = scratch / "mine.sif"
    fabric_builder.image(made)
    code = main(["module", str(made), "-o", str(folder / "modules"), "--name", "mine/1", "--site", "generic"])
    if code not in {0, 1}:
        sys.exit(code)


def write(folder: Path) -> None:
    """Write all of it into a folder, which is made anew; files that name their place name one of no machine."""
    with tempfile.TemporaryDirectory() as temporary, mock.patch.dict(os.environ, HOME=temporary):
        new, scratch = Path(temporary) / "new", Path(temporary) / "scratch"
        scratch.mkdir()
        layer_folder = layers(new / "layers")
        lock(new, layer_folder)
        host(new, scratch)
        cache(new)
        image(new, layer_folder, scratch)
        module(new, scratch)
        for file in (new / "modules").rglob("*"):
            if file.is_file():
                file.write_text(file.read_text().replace(temporary, "/project"))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(new, folder)


if __name__ == "__main__":
    write(WRITTEN / __version__)
