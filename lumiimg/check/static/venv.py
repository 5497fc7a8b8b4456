"""What stands against a Python environment that jobs bind over an image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.registry import Findings
from lumiimg.findings import Code, Level, Severity
from lumiimg.resolve.inventory import read_contents
from lumiimg.resolve.venv import VenvFault, faults_of, made_again

if TYPE_CHECKING:
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.host_fit import HostFit


_FOUND = {
    VenvFault.OTHER_PYTHON: (Code.PROGRAM_VENV_PYTHON, Severity.PROBLEM, None),
    VenvFault.OWN_TORCH: (Code.PROGRAM_VENV_TORCH, Severity.PROBLEM, "own"),
    VenvFault.OWN_PART: (Code.PROGRAM_VENV_TORCH, Severity.UNKNOWN, "part"),
    VenvFault.OTHER_IMAGE: (Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, None),
    VenvFault.NOT_KNOWN: (Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, None),
}


def with_faults_of_venv(context: ImageInContext, fit: HostFit) -> HostFit:
    """Return what files say, with what stands against an environment over an image."""
    venv, path = context.venv, context.path
    if venv is None:
        return fit
    found = Findings(Level.STATIC)
    for fault, sentence in faults_of(venv, path, read_contents(context.plain).has):
        code, severity, reason = _FOUND[fault]
        again = (made_again(venv, path),)
        found.add(code, severity, sentence, reason=reason, where=str(venv.path), remedy=again)
    return replace(fit, static=replace(fit.static, findings=(*found.found, *fit.static.findings)))
