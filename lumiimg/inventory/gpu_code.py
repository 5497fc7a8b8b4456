"""The GPU code of an image: which files contain it, and for which GPUs. Only headers are read, never the code."""

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
"""Minimum size of a file with a bundle, which begins at a page."""
_MAX_HEADS = 20_000
"""Maximum number of kernel files that are opened."""


class CodeForm(StrEnum):
    """How GPU code is stored in an image."""

    BUNDLES = "bundles"
    """In a program or library, which needs every one of its bundles."""
    KERNELS = "kernels"
    """In the files of a folder, from which a library opens those for the present GPU."""


@dataclass(frozen=True, slots=True)
class CodeBundles:
    """Bundles of one file that contain code for the same targets."""

    targets: tuple[GpuTarget, ...]
    """Targets by their compiler names: `gfx90a`, `gfx90a:sramecc+:xnack-`, `gfx9-4-generic`."""
    count: int
    """Number of bundles in the file, or of kernel files in the folder."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file with GPU code, or a folder of kernel files."""

    component: str
    """Common name: `RCCL`, `vLLM _C`; its file name if that is not known."""
    path: str
    """Path in the image."""
    form: CodeForm
    """How its code is stored."""
    bundles: tuple[CodeBundles, ...]
    """Bundles by target."""
    fit: GpuFit | None = None
    """Whether the requested GPU accepts it; null if none was requested."""

    @property
    def targets(self) -> tuple[GpuTarget, ...]:
        """All targets that it has code for."""
        return tuple(sorted({target for each in self.bundles for target in each.targets}, key=str))

    def fit_for(self, gpu: GpuTarget) -> GpuFit:
        """Return whether a GPU accepts it: a library needs all its code, of kernel files only those for the GPU."""
        return fit([self.targets] if self.form is CodeForm.KERNELS else [each.targets for each in self.bundles], gpu)


@dataclass(frozen=True, slots=True)
class UnreadableCode:
    """A file whose GPU code cannot be read, so that it may be for any GPU or none."""

    path: str
    """Path in the image."""
    why: str
    """Reason why it cannot be read."""


@dataclass(frozen=True, slots=True)
class GpuCode:
    """The GPU code in an image."""

    files: tuple[CodeFile, ...]
    """Files with GPU code, by component and path."""
    unreadable: tuple[UnreadableCode, ...]
    """Files whose GPU code cannot be read, by path."""

    def with_fit(self, gpu: GpuTarget | None) -> GpuCode:
        """Return a copy that states for each file whether a GPU accepts it; without a GPU, return it unchanged."""
        return replace(self, files=tuple(replace(one, fit=one.fit_for(gpu)) for one in self.files)) if gpu else self


@dataclass(frozen=True, slots=True)
class ImageGpuCode:
    """The GPU code of an image, by file."""

    image: str
    """Image as given on the command line."""
    gpu: GpuTarget | None
    """GPU of --site, with the modes a process sees by default; null without --site."""
    code: GpuCode


def processors_of(files: Iterable[CodeFile]) -> tuple[str, ...]:
    """Return the processors that files have code for, ordered by number."""
    found = {target.processor for file in files for target in file.targets}
    return tuple(sorted(found, key=lambda name: (len(name), name)))


def may_have_code(path: str) -> bool:
    """Return whether a path's name is that of a library, program or kernel file; other files are not read."""
    return _LIBRARY_OR_PROGRAM.fullmatch(path.rpartition("/")[2]) is not None or kernel_file(path) is not None


def read_gpu_code(root: RootFileSystem, paths: Iterable[str], links: Iterable[str]) -> GpuCode:
    """Return the GPU code of an image.

    `paths`: its regular files that `may_have_code`; those without read permission are skipped, as the runtime could not
    read them, either. `links`: its symlinks, which may identify a file with an arbitrary name.
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
    """Number of bundles by targets, for each file path."""
    kernels: defaultdict[tuple[str, str], Counter[GpuTarget]] = field(default_factory=lambda: defaultdict(Counter))
    """Number of kernel files by target, for each component and folder."""
    first_of: dict[KernelFile, tuple[GpuTarget, ...]] = field(default_factory=dict)
    """Targets of the first kernel file, for each combination of facts in file names."""
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
        """Return the targets of a kernel file; of files whose names show the same, only the first is opened."""
        if kernels in self.first_of:
            return self.first_of[kernels]
        self.heads += 1
        if self.heads > _MAX_HEADS:
            raise BadInputError(f"not read: the limit of {_MAX_HEADS} kernel files is reached")
        with contextlib.closing(self.root.open(path)) as file:
            (targets,) = gpu_code_in(file, path)
        if kernels.target is not None:
            self.first_of[kernels] = targets
        return targets

    def files(self) -> Iterable[CodeFile]:
        """Yield the files and folders with GPU code."""
        for path, found in self.bundles.items():
            bundles = tuple(CodeBundles(*each) for each in sorted(found.items(), key=str))
            yield CodeFile(self._named(component_of(path), path), path, CodeForm.BUNDLES, bundles)
        for (component, folder), targets in self.kernels.items():
            bundles = tuple(CodeBundles((target,), number) for target, number in sorted(targets.items(), key=str))
            if bundles:
                name = self._named(component or component_of(folder), folder)
                yield CodeFile(name, folder, CodeForm.KERNELS, bundles)

    def _named(self, component: str, path: str) -> str:
        """Return the name of a file's component; if its own path does not show it, from a link to it or its folder."""
        folder, _, name = path.rpartition("/")
        return component if component != name else self._by_links.get(path) or self._by_links.get(folder) or name

    @cached_property
    def _by_links(self) -> dict[str, str]:
        """Component by link target, for links whose paths are those of a library or of a kernel folder."""
        found: dict[str, str] = {}
        for link in self.links:
            inside = filter(None, map(kernel_file, (f"{link}/x.co", f"{link}/library/x.co")))
            names = [component_of(link)] if is_library(link) else [kernels.component for kernels in inside]
            if name := next(filter(None, names), None):
                with contextlib.suppress(OSError, BadInputError):
                    found[self.root.resolve(link)] = name
        return found
