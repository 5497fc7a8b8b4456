"""What a build does, one step after the other: the layers of a chain, and the files of its base before them.

A base that lumiimg makes takes minutes before its script runs. Its files are a step of their own, kept as a layer is:
where the script fails, or is changed, the next build begins with the script.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.build.keys import stamp
from lumiimg.definition.definition import Definition, Sections
from lumiimg.image import ImageError
from lumiimg.image.sif import PartitionFormat, read_sif_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.capabilities import BuildMachine

BOOTSTRAP = "00-bootstrap"
"""The name of the first step, where a base is made in two."""


def steps_of(chain: Sequence[Definition], machine: BuildMachine) -> tuple[Definition, ...]:
    """Return the steps of a chain: the definitions, with the files of the base before them where lumiimg makes these.

    Raises BadInputError if a base that is a file cannot be read.
    """
    base = chain[0]
    header = base.sections.header
    if content_below(base) or not machine.makes_base(header.agent):
        return tuple(chain)
    names = tuple(f"{name} (bootstrap)" for name in base.layers)
    files = replace(base, name=BOOTSTRAP, layers=names, sections=Sections(header), files=())
    return (files, *chain)


def content_below(first: Definition) -> str:
    """Return the content of what layers are laid over as it is: a base that is a file here; nothing for another base.

    It is that of this machine's file: a copy of it, elsewhere, is another. Raises BadInputError if it cannot be read.
    """
    return stamp(first.origin) if first.origin is not None and can_be_below(first.origin) else ""


def can_be_below(image: Path) -> bool:
    """Whether layers can be laid over an image as it is: a SIF of one squashfs."""
    try:
        found = read_sif_file(image)
        return found.root_partition(str(image)).file_system == PartitionFormat.SQUASHFS and not found.overlays()
    except ImageError:
        return False
