"""The GPU code of an image: which of its files have some, and for which GPUs. Heads are read, never the code."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.gpu import GpuFit, GpuTarget, KernelFile, component_of, fit, gpu_code_in, is_library, kernel_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.image import RootFileSystem

_LIBRARY_OR_PROGRAM = re.compile(r"[^.]+|.+\.so(?:\.[0-9.]+)?|.+\.(?:exe|bin|out|x)")
_SMALLEST_BYTES = 4096
"""Of a file with a bundle, which begins at a page."""
_MAX_HEADS = 20_000
"""Of kernel files whose names say nothing."""


class CodeForm(StrEnum):
    """How GPU code lies in an image."""

    BUNDLES = "bundles"
    """In a program or library, which needs each of its bundles."""
    KERNELS = "kernels"
    """In files of a folder, of which a library opens those of the GPU at hand."""


@dataclass(frozen=True, slots=True)
class CodeBundles:
    """Bundles of one file that have code for the same targets."""

    targets: tuple[GpuTarget, ...]
    """As compilers name them: `gfx90a`, `gfx90a:sramecc+:xnack-`, `gfx9-4-generic`."""
    count: int
    """Bundles of the file, or kernel files of the folder."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file with GPU code, or a folder of kernel files."""

    component: str
    """What people call it: `RCCL`, `vLLM _C`; its own name where that is not known."""
    path: str
    """In the image."""
    form: CodeForm
    """How its code lies there."""
    bundles: tuple[CodeBundles, ...]
    """What its code is for."""
    fit: GpuFit | None = None
    """Whether the GPU that was asked about takes it; null where none was."""

    @property
    def targets(self) -> tuple[GpuTarget, ...]:
        """All that it has code for."""
        return tuple(sorted({target for each in self.bundles for target in each.targets}, key=str))

    def fit_for(self, gpu: GpuTarget) -> GpuFit:
        """Return whether a GPU takes it: all code of a library; of kernel files, those of the GPU are opened."""
        return fit([self.targets] if self.form is CodeForm.KERNELS else [each.targets for each in self.bundles], gpu)


@dataclass(frozen=True, slots=True)
class UnreadableCode:
    """A file whose GPU code cannot be read, and so may be for any GPU or none."""

    path: str
    """In the image."""
    why: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class GpuCode:
    """What an image has of GPU code."""

    files: tuple[CodeFile, ...]
    """By component and path."""
    unreadable: tuple[UnreadableCode, ...]
    """Files whose GPU code cannot be read, by path."""

    def with_fit(self, gpu: GpuTarget | None) -> GpuCode:
        """Return the same, with whether a GPU takes each; without a GPU as it is."""
        return replace(self, files=tuple(replace(one, fit=one.fit_for(gpu)) for one in self.files)) if gpu else self


@dataclass(frozen=True, slots=True)
class ImageGpuCode:
    """The GPU code of an image, by file."""

    image: str
    """As it was named."""
    gpu: GpuTarget | None
    """The GPU of --site, in the modes that a process finds that sets nothing; null without --site."""
    code: GpuCode


def processors_of(files: Iterable[CodeFile]) -> tuple[str, ...]:
    """Return what files have code for, in the order of their numbers."""
    found = {target.processor for file in files for target in file.targets}
    return tuple(sorted(found, key=lambda name: (len(name), name)))


def may_have_code(path: str) -> bool:
    """Return whether the file at a path is looked at: by its name a library, a program or a kernel file."""
    return _LIBRARY_OR_PROGRAM.fullmatch(path.rpartition("/")[2]) is not None or kernel_file(path) is not None


def read_gpu_code(root: RootFileSystem, paths: Iterable[str], links: Iterable[str]) -> GpuCode:
    """Return the GPU code of an image.

    `paths`: its regular files that `may_have_code`; those that may not be read are passed over, as the runtime would
    have to. `links`: its symlinks, by which a file of any name may be known.
    """
    reader = _Reader(root, links)
    lost = []
    for path in paths:
        try:
            reader.read(path)
        except OSError:
            continue
        except BadInputError as error:
            lost.append(UnreadableCode(path, error.what))
    files = sorted(reader.files(), key=lambda each: (each.component.lower(), each.path))
    return GpuCode(tuple(files), tuple(sorted(lost, key=lambda each: each.path)))


@dataclass
class _Reader:
    root: RootFileSystem
    links: Iterable[str]
    bundles: dict[str, Counter[tuple[GpuTarget, ...]]] = field(default_factory=dict)
    """By the path of a file, its bundles by what they are for."""
    kernels: defaultdict[tuple[str, str], Counter[GpuTarget]] = field(default_factory=lambda: defaultdict(Counter))
    """By component and folder, how many kernel files are for each target."""
    first_of: dict[KernelFile, tuple[GpuTarget, ...]] = field(default_factory=dict)
    """By what names say, what the first such kernel file is for."""
    heads: int = 0

    def read(self, path: str) -> None:
        """Read a file. Raises OSError, BadInputError."""
        if kernels := kernel_file(path):
            self.kernels[kernels.component, kernels.root].update(self._targets(path, kernels))
            return
        with contextlib.closing(self.root.open(path)) as file:
            found = gpu_code_in(file, path) if file.size >= _SMALLEST_BYTES else ()
        if found:
            self.bundles[path] = Counter(found)

    def _targets(self, path: str, kernels: KernelFile) -> tuple[GpuTarget, ...]:
        """Return what a kernel file is for; of those whose names say the same, the first is opened."""
        if kernels in self.first_of:
            return self.first_of[kernels]
        self.heads += 1
        if self.heads > _MAX_HEADS:
            raise BadInputError(f"not read: more than the limit of {_MAX_HEADS} kernel files")
        with contextlib.closing(self.root.open(path)) as file:
            (targets,) = gpu_code_in(file, path)
        if kernels.target is not None:
            self.first_of[kernels] = targets
        return targets

    def files(self) -> Iterable[CodeFile]:
        """Yield what has GPU code."""
        for path, found in self.bundles.items():
            bundles = tuple(CodeBundles(*each) for each in sorted(found.items(), key=str))
            yield CodeFile(self._named(component_of(path), path), path, CodeForm.BUNDLES, bundles)
        for (component, folder), targets in self.kernels.items():
            bundles = tuple(CodeBundles((target,), number) for target, number in sorted(targets.items(), key=str))
            if bundles:
                name = self._named(component or component_of(folder), folder)
                yield CodeFile(name, folder, CodeForm.KERNELS, bundles)

    def _named(self, component: str, path: str) -> str:
        """Return what a file is; where its own path does not say, by the name of a link to it, or to its folder."""
        folder, _, name = path.rpartition("/")
        return component if component != name else self._by_links.get(path) or self._by_links.get(folder) or name

    @cached_property
    def _by_links(self) -> dict[str, str]:
        """Where links lead whose paths are those of a library or of a folder of kernels, each with what it is."""
        found: dict[str, str] = {}
        for link in self.links:
            inside = filter(None, map(kernel_file, (f"{link}/x.co", f"{link}/library/x.co")))
            names = [component_of(link)] if is_library(link) else [kernels.component for kernels in inside]
            if name := next(filter(None, names), None):
                with contextlib.suppress(OSError, BadInputError):
                    found[self.root.resolve(link)] = name
        return found
