"""The GPU code of an image: which of its files have some, and for which GPUs. Heads are read, never the code."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError
from lumiimg.gpu.components import KernelFile, component_of, is_library, kernel_file, read_kernel_file
from lumiimg.gpu.fat_file import read_file
from lumiimg.gpu.rule import CodeForm, GpuFit, fit_of_all, fit_of_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.gpu.target import GpuTarget
    from lumiimg.image import RootFileSystem

_LIBRARY_OR_PROGRAM = re.compile(r"[^.]+|.+\.so(?:\.[0-9.]+)?|.+\.(?:exe|bin|out|x)")
_SMALLEST_BYTES = 4096
"""Of a file with a bundle, which begins at a page."""
_MAX_HEADS = 20_000
"""Of kernel files whose names say nothing."""


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
        files = (replace(file, fit=_fit(file, gpu)) if gpu else file for file in self.files)
        return replace(self, files=tuple(files))


@dataclass(frozen=True, slots=True)
class ImageGpuCode:
    """For which GPUs an image has code."""

    image: str
    """As it was named."""
    gpu: GpuTarget | None
    """The GPU of --site, in the modes that a process finds that sets nothing; null without --site."""
    code: GpuCode


def processors_of(files: Iterable[CodeFile]) -> tuple[str, ...]:
    """Return what files have code for, in the order of their numbers."""
    found = {target.processor for file in files for target in file.targets}
    return tuple(sorted(found, key=lambda name: (len(name), name)))


@dataclass(slots=True)
class _Reader:
    root: RootFileSystem
    files: list[CodeFile] = field(default_factory=list)
    unreadable: list[UnreadableCode] = field(default_factory=list)
    kernels: defaultdict[tuple[str, str], Counter[GpuTarget]] = field(default_factory=lambda: defaultdict(Counter))
    """By component and folder, how many kernel files are for each target."""
    first_of: dict[tuple[str, str, GpuTarget], tuple[GpuTarget, ...]] = field(default_factory=dict)
    """By component, folder and the target that names say, what the first such kernel file is for."""
    heads: int = 0

    def read(self, path: str) -> None:
        if kernels := kernel_file(path):
            self.kernels[kernels.component, kernels.root].update(self._targets(path, kernels))
            return
        with contextlib.closing(self.root.open(path)) as file:
            found = read_file(file) if file.size >= _SMALLEST_BYTES else ()
        if found:
            bundles = tuple(CodeBundles(*each) for each in sorted(Counter(found).items(), key=str))
            self.files.append(CodeFile(component_of(path), path, CodeForm.BUNDLES, bundles))

    def _targets(self, path: str, kernels: KernelFile) -> tuple[GpuTarget, ...]:
        """Return what a kernel file is for; of those whose names say the same, the first is opened."""
        named = (kernels.component, kernels.root, kernels.target) if kernels.target else None
        if named in self.first_of:
            return self.first_of[named]
        self.heads += 1
        if self.heads > _MAX_HEADS:
            raise BadInputError(f"not looked at: more than the {_MAX_HEADS} kernel files that are opened")
        with contextlib.closing(self.root.open(path)) as file:
            targets = read_kernel_file(file, path)
        if named is not None:
            self.first_of[named] = targets
        return targets

    def result(self) -> GpuCode:
        for (component, root), found in self.kernels.items():
            bundles = tuple(CodeBundles((target,), number) for target, number in sorted(found.items(), key=str))
            if bundles:
                self.files.append(CodeFile(component or component_of(root), root, CodeForm.KERNELS, bundles))
        by_name = sorted(self.files, key=lambda each: (each.component.lower(), each.path))
        return GpuCode(tuple(by_name), tuple(sorted(self.unreadable, key=lambda each: each.path)))


def _fit(file: CodeFile, gpu: GpuTarget) -> GpuFit:
    bundles = [each.targets for each in file.bundles]
    # all code of a library is needed; of kernel files, those of the GPU at hand are opened
    return fit_of_all(bundles, gpu) if file.form is CodeForm.BUNDLES else fit_of_any(chain.from_iterable(bundles), gpu)


def may_have_code(path: str) -> bool:
    """Return whether the file at a path is looked at: by its name a library, a program or a kernel file."""
    return _LIBRARY_OR_PROGRAM.fullmatch(path.rpartition("/")[2]) is not None or kernel_file(path) is not None


def read_gpu_code(root: RootFileSystem, paths: Iterable[str], links: Iterable[str]) -> GpuCode:
    """Return the GPU code of an image.

    `paths`: its regular files that `may_have_code`; those that may not be read are passed over, as the runtime would
    have to. `links`: its symlinks, by which a file of any name may be known.
    """
    reader = _Reader(root)
    for path in paths:
        try:
            reader.read(path)
        except OSError:
            continue
        except BadInputError as error:
            reader.unreadable.append(UnreadableCode(path, error.what))
    code = reader.result()
    return replace(code, files=tuple(_by_links(root, code.files, links)))


def _by_links(root: RootFileSystem, files: Iterable[CodeFile], links: Iterable[str]) -> Iterator[CodeFile]:
    """Yield the files, those whose own path says nothing by the name of a link to them, or to a folder above."""
    names: dict[str, str] | None = None
    for file in files:
        if file.component != file.path.rpartition("/")[2]:
            yield file
            continue
        if names is None:
            names = dict(_telling(root, links))
        above = (file.path[:at] for at in (len(file.path), file.path.rfind("/")) if at > 0)
        yield replace(file, component=next((names[path] for path in above if path in names), file.component))


def _telling(root: RootFileSystem, links: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield where a link leads whose path is that of a library or of a folder of kernels, and of what."""
    for link in links:
        name = component_of(link) if is_library(link) else None
        for inside in ("", "/library") if name is None else ():
            kernels = kernel_file(f"{link}{inside}/x.co")
            name = name or (kernels.component if kernels else None)
        if name:
            with contextlib.suppress(OSError, BadInputError):
                yield root.resolve(link), name
