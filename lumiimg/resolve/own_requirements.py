"""Python packages that a user hands in: requirement files, and words like `pip:einops==0.8.1`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lumiimg.decode import read_text
from lumiimg.errors import BadInputError
from lumiimg.resolve.requirement_files import LONGEST, OwnRequirement, RequirementReader
from lumiimg.resolve.stack import PACKAGE
from lumiimg.wording import count

OF_OPTION = "the option --add"
"""Where a requirement is from that no file has."""
OF_TORCH = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton-rocm", "triton-rocm"})
"""Held at what the image has, so that it does not count where else a project takes them from."""
_FILE_LIMIT_BYTES = 8 << 20
"""A file of 300 packages with all their digests has 1 MB."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class OwnPackages:
    """All that a user hands in."""

    requirements: tuple[OwnRequirement, ...] = ()
    files: tuple[str, ...] = ()
    """As they are given to -r."""
    brought: Mapping[str, str] = field(default_factory=dict)
    """Distributions that layers of the catalogue make for the image, each with its layer."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The requirements alone."""
        return tuple(one.text for one in self.requirements)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of `--add`."""
        return tuple(f"{PACKAGE}{one.text}" for one in self.requirements if one.where == OF_OPTION)

    @property
    def summary(self) -> str:
        """In a few words."""
        where = ", ".join([*(file.rpartition("/")[2] for file in self.files), *self.words])[:_SHOWN]
        return f"{count(len(self.requirements), 'requirement')} of yours ({where})"

    @property
    def unsettled(self) -> str:
        """The same of a plan."""
        return f"{self.summary}; what they take from the index is not settled before lock"


def read_own(files: Sequence[str], words: Sequence[str], where: str = OF_OPTION) -> OwnPackages:
    """Return what files and words like `pip:einops==0.8.1` ask for; lines that are there twice count once.

    `where` says of words where they are from.

    Raises BadInputError for what cannot be read, is larger than anybody writes, or could not be settled by a lock.
    """
    reader = RequirementReader(lambda path: read_text(Path(path), _FILE_LIMIT_BYTES))
    for file in files:
        reader.read(file)
    for word in words:
        reader.add(word.removeprefix(PACKAGE), where)
    if files and not reader.found:
        raise BadInputError("requires nothing", where=", ".join(files)[:LONGEST], hint="leave it out")
    return OwnPackages(reader.found, tuple(files))
