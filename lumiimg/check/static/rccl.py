"""Which RCCL of an image matters, and what it says of itself."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.elf.loader import Process
from lumiimg.fabric.names import LIBRCCL, part_of
from lumiimg.fabric.path import FabricPath, Part
from lumiimg.fabric.rccl import Rccl, read_rccl
from lumiimg.findings import Code, Severity

if TYPE_CHECKING:
    from lumiimg.elf.objects import LoadedObject
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.findings import Findings
    from lumiimg.image import Image


def load_rccl(
    image: Image, settings: LoaderSettings, files: list[str], found: Findings
) -> tuple[Process, LoadedObject | None, str | None]:
    """Start a process with the RCCL that matters: the one that torch gets, else the one on the loader's path.

    Return (the process, the RCCL, the path of its file): without an RCCL where it cannot be loaded.
    """
    candidates = [file for file in files if part_of(file) is Part.RCCL and image.root.is_file(file)]
    process, torch, rccl = _of_torch(image, settings)
    why = f"it is what {torch} loads"
    if rccl is None:
        named = _on_loader_path(image, settings, candidates)
        chosen = named or next(iter(candidates), None)
        why = "it is on the loader's path" if named else "none is on the loader's path, and it is the first"
        process = Process(image.root, settings)
        if chosen is None:
            found.add(
                Code.RCCL_ABSENT,
                Severity.PROBLEM,
                "no librccl.so was found in the image",
                cause="the check is about RCCL: an image without it cannot use the fabric through it",
                remedy=("start from a base with ROCm: `lumiimg list`",),
            )
            return process, None, None
        outcome = process.start(chosen)
        if outcome.root is None or outcome.errors:
            found.add(
                Code.RCCL_LOAD,
                Severity.PROBLEM,
                f"{chosen} cannot be loaded in this image",
                where=chosen,
                evidence=outcome.errors[:8],
                cause="what a bind of the host (--rocm) would bring is not counted",
                remedy=("add the libraries that it names to the image",),
            )
            return process, None, chosen
        rccl = outcome.root
    others = [file for file in candidates if image.root.resolve(file) != image.root.resolve(rccl.path)]
    if others:
        found.add(
            Code.RCCL_SEVERAL,
            Severity.INFO,
            f"the image has more than one RCCL; {rccl.path} is looked at, because {why}",
            evidence=tuple(others[:8]),
        )
    return process, rccl, rccl.path


def _of_torch(image: Image, settings: LoaderSettings) -> tuple[Process, str | None, LoadedObject | None]:
    """Return the process of the image's torch, the library of it that uses RCCL, and the RCCL that the loader gives it.

    A wheel brings an RCCL along, and LD_LIBRARY_PATH decides whether it is taken: so the loader is asked, not the path.
    """
    process = Process(image.root, settings)
    for library in islice(image.root.find({"libtorch_hip.so"}), 1):
        process.start(library)
        for name in LIBRCCL:
            if (rccl := process.find(name)) is not None:
                return process, library, rccl
    return process, None, None


def _on_loader_path(image: Image, settings: LoaderSettings, candidates: list[str]) -> str | None:
    """Return what dlopen would give a program that asks for RCCL by name."""
    for candidate in candidates:
        of_image = Process(image.root, settings)
        if of_image.start(candidate).root is None:
            continue  # no library at all
        # The loader alone is the emptiest process: nothing called librccl is in it yet.
        program = Process(image.root, settings)
        if program.start(of_image.system.loader).root is None:
            return None
        for name in LIBRCCL:
            outcome = program.dlopen(name)
            if outcome.root is not None:
                return outcome.root.path
        return None
    return None


def read_path(image: Image, rccl: LoadedObject, named: str | None, found: Findings) -> tuple[FabricPath, Rccl]:
    """Return the path so far: what this RCCL looks for and takes, and what else its bytes say.

    `named` is NCCL_NET_PLUGIN, if it is set.
    """
    library = read_rccl(image.root.open(rccl.path))
    generation, files, accepts = library.generation, library.names(named), library.accepts
    path = FabricPath(
        rccl=rccl.path,
        rccl_version=library.version,
        plugin_files=files,
        accepts=accepts,
        named_by=named,
    )
    if library.opens_none(named):
        found.add(
            Code.RCCL_FOUND,
            Severity.INFO,
            f"RCCL {library.version} opens no net plugin (NCCL_NET_PLUGIN={named})",
            where=rccl.path,
            source=generation.basis if generation else None,
        )
    elif not files or not accepts:
        found.add(
            Code.RCCL_UNKNOWN,
            Severity.UNKNOWN,
            f"{rccl.path} does not say which plugin it looks for (version {library.version or 'not found in it'})",
            where=rccl.path,
            remedy=("`lumiimg check --level probe` asks the library itself",),
        )
    else:
        found.add(
            Code.RCCL_FOUND,
            Severity.INFO,
            f"RCCL {library.version or '(version not found)'} looks for {' or '.join(files)}"
            f"{f' (NCCL_NET_PLUGIN={named})' if named else ''} and takes net API v{', v'.join(map(str, accepts))}",
            where=rccl.path,
            source=f"strings in the library; {generation.basis}" if generation else "strings in the library",
        )
    return path, library
