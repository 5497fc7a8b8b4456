"""Where things lie in an image whose jobs start a Python, and what the kinds of changes share."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.fabric.rccl import generation_of
from tests.shared.elf_builder import library, rpath
from tests.shared.job import sources
from tests.shared.job.changes import NotHereError, _other_torch
from tests.shared.job.world import c_library_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.shared.job.world import World


TOO_NEW = "2.39.1"


@dataclass(frozen=True)
class Planted:
    """What was done to an image."""

    variant: str
    """For tables: the same words each time that the same is done."""
    question: str | None = None
    """Where files cannot say what happens, so that an open question is right: the file that it must name."""
    cause: str | None = None
    """The file that does harm where harm is done: an open question that names it is right, too."""


if TYPE_CHECKING:
    Kind = Callable[[World, random.Random], Planted]


def prefix_of(world: World) -> str:
    """Return where the interpreter lies that jobs start: of a virtual environment, the environment."""
    if world.program is not None:
        raise NotHereError
    return world.variables["PATH"].split(":")[0].removesuffix("/bin")


def home_of(world: World) -> str:
    """Return where the interpreter's file and its standard library lie."""
    return "/opt/conda" if prefix_of(world) == "/opt/conda" else "/usr"


def packages_of(world: World) -> str:
    """Return the site folder of the interpreter that jobs start."""
    return world.folder_of(prefix_of(world))


def stdlib_of(world: World) -> str:
    return f"{home_of(world)}/lib/python{world.system.version}"


def torch_of(world: World) -> str:
    if world.package is None or world.program is not None:
        raise NotHereError
    return world.package


def tag_of(world: World) -> str:
    return f"cpython-{world.system.version.replace('.', '')}"


def own(world: World, path: str) -> Path:
    """Give an image its own copy of a file, which may be a hard link to one that images share."""
    place = world.at(path)
    if place.is_dir() or place.is_symlink():
        return place
    data, mode = place.read_bytes(), stat.S_IMODE(place.stat().st_mode)
    place.unlink()
    place.write_bytes(data)
    place.chmod(mode)
    return place


def chmod(world: World, path: str, mode: int) -> None:
    own(world, path).chmod(mode)


def copy_folder(world: World, path: str, target: str) -> None:
    """Copy a folder by hard links."""
    world.at(target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(world.at(path), world.at(target), symlinks=True, copy_function=os.link)


def put(world: World, path: str, content: str | bytes) -> str:
    """Write a file that all may read; returns its path."""
    world.put(path, content, 0o644)
    return path


def second_torch(world: World) -> str:
    """Put a torch there whose RCCL is too new for the plugin; returns its folder of packages."""
    _other_torch(world, "2.30.4")
    folder = world.folder_of("/opt/second")
    rccl_of(world, f"{folder}/torch/lib/librccl.so", TOO_NEW, *rpath("$ORIGIN"))
    return folder


def rccl_of(world: World, path: str, version: str, *arguments: str) -> Path:
    """Put an RCCL there, beside a HIP or with a search path to that of ROCm; `TOO_NEW` takes no API of the plugin's."""
    hip = library(world.parts / "libamdhip64.so.6", "-Wl,-Bsymbolic", source=sources.HIP)
    return library(world.new(path), hip, *c_library_of(world.parts), *arguments, source=rccl_source(version))


def rccl_source(version: str) -> str:
    generation = generation_of("2.30.4" if version == TOO_NEW else version)
    assert generation is not None
    accepts = (13, 12) if version == TOO_NEW else generation.accepts
    return sources.rccl(version, generation.files, accepts, generation.naming)
