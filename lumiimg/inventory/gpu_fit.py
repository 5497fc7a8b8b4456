"""Whether the GPU of a machine takes the code of an image, component by component, and what follows where it does not.

Of a component that lies in several places those count that the process of a job loads; where none is known to be
loaded, each may be the one.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.gpu import (
    OVERRIDE,
    XNACK,
    GpuCodeError,
    GpuFit,
    GpuTarget,
    component_of,
    fit,
    kernel_file,
    node_gpu,
    role_of,
    taken_for,
)
from lumiimg.image import ImageError
from lumiimg.inventory.gpu_code import CodeForm

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from lumiimg.inventory.components import Inventory
    from lumiimg.inventory.gpu_code import CodeFile, GpuCode

_WORST_FIRST = (GpuFit.NO, GpuFit.UNKNOWN, GpuFit.XNACK, GpuFit.PART, GpuFit.RUNS)
_NO_CODE = "no GPU code was found in it"
_ENOUGH = 0.5
"""Of the bundles of a component that each job calls: some of torch's and vLLM's are for newer GPUs by design."""
_WHICH = "there are several, for different GPUs; which one a job loads is not known"


@dataclass(frozen=True, slots=True)
class ComponentFit:
    """One component, and whether the GPU takes its code."""

    component: str
    """What people call it: `RCCL`, `vLLM _C`."""
    fit: GpuFit
    """Whether the GPU takes it."""
    needed: bool
    """Whether each job with that software calls it; else the answer does not depend on it."""
    processors: tuple[str, ...]
    """That it has code for; one that has the GPU's name, and is not taken, with the mode that keeps it out."""
    paths: tuple[str, ...]
    """In the image: the places that count, those that a job loads where that is known."""
    without: str
    """What happens on a GPU that takes none of its code."""
    why: str | None = None
    """Of one that is not known: why."""

    @property
    def blocks_jobs(self) -> bool:
        """Whether jobs fail by it."""
        return self.needed and self.fit in {GpuFit.NO, GpuFit.XNACK}

    @property
    def has(self) -> str:
        """What it has code for, in words: `gfx942 only`, `gfx908 and gfx942 only`."""
        *others, last = self.processors or ("no GPU",)
        return f"{', '.join(others)} and {last} only" if others else f"{last} only"


@dataclass(frozen=True, slots=True)
class GpuAccount:
    """What the GPU of a machine makes of the code of an image."""

    gpu: str
    """As a process of a job finds it: `gfx90a:sramecc+:xnack-`."""
    machine: str
    """The site, or the node that was seen, whose GPU it is."""
    parts: tuple[ComponentFit, ...]
    """By component, those first that each job calls."""
    taken_for: str | None = None
    """The processor for which a variable has the runtime take the GPU, where that is another."""

    @property
    def processor(self) -> str:
        """Its name without modes."""
        return self.gpu.partition(":")[0]

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        return f"{self.processor}, the GPU of {self.machine}"


class MachineGpu(NamedTuple):
    """The GPUs of a machine, and where that is from."""

    processor: str
    """`gfx90a`."""
    machine: str
    """The site, or the node that was seen."""


def account_of_gpu(
    contents: Inventory, of: MachineGpu | None, variable: Callable[[str], str | None], loaded: Iterable[str]
) -> GpuAccount | None:
    """Return what a GPU makes of the code of an image; None without a GPU of AMD's that is known.

    `variable` returns a variable as a process in the container has it. `loaded`: the files of a job's process, as its
    loader found them.
    """
    if of is None:
        return None
    try:
        gpu = node_gpu(of.processor, variable(XNACK))
    except GpuCodeError:
        return None
    files: set[str] = set()
    for path in loaded:
        with contextlib.suppress(OSError, ImageError):  # of the host
            files.add(contents.image.root.resolve(path))
    parts = component_fits(contents.gpu_code, gpu, frozenset(files))
    return GpuAccount(str(gpu), of.machine, parts, taken_for(of.processor, variable(OVERRIDE)))


def component_fits(code: GpuCode, gpu: GpuTarget, loaded: frozenset[str] = frozenset()) -> tuple[ComponentFit, ...]:
    """Return what a GPU makes of the code of an image; `loaded` are the files of a job's process, without links."""
    files: dict[str, list[CodeFile]] = {}
    for file in code.with_fit(gpu).files:
        files.setdefault(file.component, []).append(file)
    found = [_verdict(name, of, gpu, loaded) for name, of in files.items()]
    return tuple(sorted((*found, *_unknown(code, files, loaded)), key=lambda one: (not one.needed, one.component)))


def _verdict(component: str, files: Sequence[CodeFile], gpu: GpuTarget, loaded: frozenset[str]) -> ComponentFit:
    role = role_of(component)
    counting = [file for file in files if _counts(file, component, loaded)]
    fits = {file.fit for file in counting or files if file.fit}
    fit = next(each for each in _WORST_FIRST if each in fits)
    why = None
    if not counting and len(fits) > 1 and fit is not GpuFit.PART:
        fit, why = (GpuFit.UNKNOWN, _WHICH) if role.needed else (GpuFit.PART, None)
    elif fit is GpuFit.PART and role.needed and (share := _share(counting or files, gpu)) < _ENOUGH:
        fit, why = GpuFit.UNKNOWN, f"of its pieces of code, {share:.0%} are for it"
    elif fit is GpuFit.UNKNOWN:
        why = "the files do not show whether the GPU accepts such code"
    counting = counting or list(files)
    paths = tuple(file.path for file in counting)
    return ComponentFit(component, fit, role.needed, _processors(counting, gpu), paths, role.without, why)


def _processors(files: Sequence[CodeFile], gpu: GpuTarget) -> tuple[str, ...]:
    """Return what files have code for, in the order of their numbers; with modes where these keep a GPU from it."""
    names: dict[str, str] = {}
    for target in (target for file in files for target in file.targets):
        other = replace(
            target,
            sramecc=None if target.sramecc == gpu.sramecc else target.sramecc,
            xnack=None if target.xnack == gpu.xnack else target.xnack,
        )
        is_of_gpu = fit([[GpuTarget(target.processor)]], gpu) is GpuFit.RUNS
        names[str(other) if is_of_gpu else target.processor] = target.processor
    return tuple(sorted(names, key=lambda name: (len(names[name]), name)))


def _share(files: Sequence[CodeFile], gpu: GpuTarget) -> float:
    """Return which part of their bundles a GPU takes."""
    bundles = [each for file in files for each in file.bundles]
    taken = sum(each.count for each in bundles if fit([each.targets], gpu) is GpuFit.RUNS)
    return taken / sum(each.count for each in bundles)


def _counts(file: CodeFile, component: str, loaded: frozenset[str]) -> bool:
    """Whether a process has a file, or looks for kernel files in a folder: below that of a library of the component."""
    if file.form is not CodeForm.KERNELS:
        return file.path in loaded
    own = (posixpath.dirname(path) for path in loaded if component_of(path) == component)
    return any(file.path.startswith(f"{folder}/") for folder in own)


def _unknown(code: GpuCode, files: Collection[str], loaded: frozenset[str]) -> Iterator[ComponentFit]:
    """Yield components of which nothing is known: they cannot be read, or have no code where they should have some."""
    named: dict[str, list[tuple[str, str]]] = {}
    for lost in code.unreadable:
        kernels = kernel_file(lost.path)
        component = (kernels.component if kernels else "") or component_of(lost.path)
        named.setdefault(component, []).append((lost.path, lost.why))
    for path in loaded:
        component = component_of(path)
        if role_of(component).carries and component not in files and component not in named:
            named[component] = [(path, _NO_CODE)]
    for component, lost_files in named.items():
        role, paths = role_of(component), tuple(path for path, _ in lost_files)
        # beside another of its kind that can be read, only the one that a job loads counts
        needed = role.needed and (component not in files or not loaded.isdisjoint(paths))
        yield ComponentFit(component, GpuFit.UNKNOWN, needed, (), paths, role.without, lost_files[0][1])
