"""In what two nodes differ, in a few words each: another libcxi, without a NIC, the provider tcp."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.nodes.answers import Fingerprint, Library

_SHOWN = 4
_BUILD_DIGITS = 8


def differences(of: Fingerprint, usual: Fingerprint) -> tuple[str, ...]:
    """Return what a fingerprint has other than the usual one, what most explains the rest first; a few at most."""
    if of == usual:
        return ()
    found = list(dict.fromkeys(_all(of, usual))) or ["something that is not shown here"]
    shown = found if len(found) <= _SHOWN else [*found[: _SHOWN - 1], f"{len(found) - _SHOWN + 1} more differences"]
    return tuple(shown)


def _all(of: Fingerprint, usual: Fingerprint) -> Iterator[str]:
    if of.trouble != usual.trouble:
        yield f"not probed: {of.trouble}" if of.trouble else "probed"
        return
    yield from _word("RCCL", of.rccl or "unknown", usual.rccl or "unknown")
    yield from _libraries(of, usual)
    if of.fabric.provider != usual.fabric.provider:
        yield f"provider {of.fabric.provider or 'not known'} instead of {usual.fabric.provider or 'none known'}"
    if of.nics != usual.nics:
        yield f"other NICs: {_nics(of)} instead of {_nics(usual)}"
    for field in ("plugin", "plugin_api", "libfabric", "libcxi"):
        here, there = getattr(of.fabric, field), getattr(usual.fabric, field)
        yield from _word(field.replace("_", " "), f"{here or 'none'}", f"{there or 'none'}")
    yield from _word("GPUs", f"{of.gpus or 0}", f"{usual.gpus or 0}")
    yield from _word("amdgpu", of.gpu_driver or "none", usual.gpu_driver or "none")
    yield from _word("engine", of.engine or "none", usual.engine or "none")
    yield from _word("kernel", of.kernel, usual.kernel)
    for finding in sorted(set(of.findings) - set(usual.findings)):
        identity, _, severity = finding.partition(" ")
        yield f"{identity} is {severity}"
    for finding in sorted(set(usual.findings) - set(of.findings)):
        identity = finding.partition(" ")[0]
        if not any(other.startswith(f"{identity} ") for other in of.findings):
            yield f"no {identity}"


def _libraries(of: Fingerprint, usual: Fingerprint) -> Iterator[str]:
    """Yield which libraries are others; one that lies elsewhere is the same if its build is."""
    ours, theirs = _by_name(of), _by_name(usual)
    for name in sorted(ours.keys() & theirs.keys()):
        here, there = ours[name], theirs[name]
        if here.build != there.build:
            yield f"another {name} (build {_short(here)} instead of {_short(there)})"
        elif here.path != there.path:
            yield f"{name} from {here.path} instead of {there.path}"
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"without {name}"
    for name in sorted(ours.keys() - theirs.keys()):
        yield f"with {name}"


def _by_name(of: Fingerprint) -> dict[str, Library]:
    """Return the libraries by name up to `.so.N`: libcxi.so.1.5.0 is another build of libcxi.so.1.7.0."""
    return {_soname(library.name): library for library in of.libraries}


def _soname(name: str) -> str:
    stem, so, versions = name.partition(".so")
    major = versions.split(".")[1:2]
    return ".".join((stem + so, *major)) if so else name


def _short(library: Library) -> str:
    return library.build[:_BUILD_DIGITS] or "unknown"


def _nics(of: Fingerprint) -> str:
    if not of.nics:
        return "none"
    down = sum(nic.link_is_up is False for nic in of.nics)
    firmware = ", ".join(sorted({nic.firmware for nic in of.nics if nic.firmware}))
    return f"{len(of.nics)}{f', {down} down' if down else ''}{f', firmware {firmware}' if firmware else ''}"


def _word(what: str, here: str, there: str) -> Iterator[str]:
    if here != there:
        yield f"{what} {here} instead of {there}"
