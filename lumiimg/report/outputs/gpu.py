"""What is printed of the GPU code of an image."""

from __future__ import annotations

from lumiimg.gpu.rule import CodeForm, GpuFit
from lumiimg.report.outputs.shape import Output, Shape, Text
from lumiimg.resolve.gpu_code import UnreadableCode


class BundlesOfCode(Shape):
    """Bundles of one file that have code for the same targets."""

    targets: tuple[Text, ...]
    """As compilers name them: `gfx90a`, `gfx90a:sramecc+:xnack-`, `gfx9-4-generic`."""
    count: int
    """Bundles of the file; of a folder the kernel files."""


class FileOfCode(Shape):
    """A file with GPU code, or a folder of kernel files."""

    component: str
    """What people call it: `RCCL`, `vLLM _C`; its own name where that is not known."""
    path: str
    """In the image."""
    form: CodeForm
    """How its code lies there."""
    bundles: tuple[BundlesOfCode, ...]
    """What its code is for."""
    fit: GpuFit | None
    """Whether the GPU that was asked about takes it; null where none was."""


class ComponentOnGpu(Shape):
    """A component of an image that has GPU code, or should have some."""

    component: str
    """What people call it: `RCCL`, `vLLM _C`."""
    fit: GpuFit
    """Whether the GPU takes its code."""
    needed: bool
    """Whether each job with that software calls it; else the answer does not depend on it."""
    processors: tuple[str, ...]
    """That it has code for."""
    paths: tuple[str, ...]
    """In the image: the places that count, those that a job loads where that is known."""
    why: str | None
    """Of one that is not known: why."""


class CodeOnGpu(Shape):
    """What the GPU of a machine makes of the code of an image."""

    gpu: str
    """As a process of a job finds it: `gfx90a:sramecc+:xnack-`."""
    machine: str
    """The site, or the node that was seen, whose GPU it is."""
    parts: tuple[ComponentOnGpu, ...]
    """By component, those first that each job calls."""


class ShowGpu(Output):
    """For which GPUs an image has code."""

    printed_by = "lumiimg show image.sif --gpu --json"

    image: str
    """As it was named."""
    gpu: Text | None
    """The GPU of --site, in the modes that a process finds that sets nothing; null without --site."""
    files: tuple[FileOfCode, ...]
    """By component and path."""
    unreadable: tuple[UnreadableCode, ...]
    """Files whose GPU code cannot be read, by path."""
