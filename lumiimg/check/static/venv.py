"""What stands against a Python environment that jobs bind over an image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.findings import Code, Findings, Level, Severity
from lumiimg.resolve.inventory import read_contents
from lumiimg.resolve.venv import Venv, VenvFault, faults_of, made_again

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.check.static.boundary import Boundary
    from lumiimg.image import Image


def with_faults_of_venv(boundary: Boundary, venv: Venv | None, path: Path, image: Image) -> Boundary:
    """Return what files say, with what stands against an environment over an image; `image` is without it."""
    if venv is None:
        return boundary
    found, where, again = Findings(Level.STATIC), str(venv.path), (made_again(venv, path),)
    for fault, sentence in faults_of(venv, path, read_contents(image).has):
        if fault is VenvFault.OTHER_PYTHON:
            why = "packages lie in a folder of their Python, where no other looks; its `python` may lead nowhere"
            found.add(Code.PROGRAM_VENV_PYTHON, Severity.PROBLEM, sentence, where=where, cause=why, remedy=again)
        elif fault is VenvFault.OWN_TORCH:
            why = "a job loads that torch, with its RCCL or CUDA, and not what the image was built with"
            found.add(Code.PROGRAM_VENV_TORCH, Severity.PROBLEM, sentence, where=where, cause=why, remedy=again)
        elif fault is VenvFault.OWN_PART:
            why = "it is imported instead of what belongs to the image's torch: kernels may fail to compile or to load"
            found.add(Code.PROGRAM_VENV_TORCH, Severity.UNKNOWN, sentence, where=where, cause=why, remedy=again)
        else:
            why = "packages are chosen beside what one image has; compiled ones may not load with another"
            found.add(Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, sentence, where=where, cause=why, remedy=again)
    static = boundary.static
    return replace(boundary, static=replace(static, findings=(*found.found, *static.findings)))
