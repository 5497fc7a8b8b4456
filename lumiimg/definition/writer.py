"""Write a lock as definitions: a chain of layers, and a flat one for engines and services that accept only one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.definition.definition import (
    BUILD_FOLDER,
    DEBOOTSTRAP,
    LAYER_LABEL,
    SCRIPT_MARK,
    VERSION_LABEL,
    Definition,
    Header,
    Sections,
    StagedFile,
    export,
)
from lumiimg.definition.text import (
    LINE_LIMIT_BYTES,
    DefinitionError,
    checked_body,
    quote_bash,
    quote_sh,
)
from lumiimg.resolve.lock import Lock, LockedLayer, wants_python
from lumiimg.resolve.stack import OWN_PACKAGES, gpus_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


CLEAN = f"rm -rf {BUILD_FOLDER}\n"
"""The last line of each `%post`."""
FLAT = "flat"
_PURE = "-any.whl"
"""Suffix of the names of pure Python wheels."""


def write_chain(lock: Lock) -> tuple[Definition, ...]:
    """Return one definition per layer; each but the first starts from the image of the previous one.

    Raises DefinitionError for a script or a value that a definition file cannot contain.
    """
    names = [f"{number:02}-{layer.name}" for number, layer in enumerate(lock.stack, 1)]
    return tuple(
        replace(_definition(lock, name, at, at + 1), needs=tuple(names[one] for one in sorted(_needs(lock.stack, at))))
        for at, name in enumerate(names)
    )


def write_flat(lock: Lock) -> Definition:
    """Return the whole stack as one definition. Raises the errors of `write_chain`."""
    return _definition(lock, FLAT, 0, len(lock.stack))


def _definition(lock: Lock, name: str, first: int, end: int) -> Definition:
    """Return the definition that makes some layers of a stack, on the image of those below, if there are any."""
    layers = lock.stack[first:end]
    parent = f"{first:02}-{lock.stack[first - 1].name}" if first else None
    bootstrap, origin = lock.bootstrap, Path(lock.bootstrap.origin)
    wheels = [wheel for layer in layers for wheel in layer.wheels]
    is_local = lock.base.layer.is_foreign and bootstrap.image is None and origin.is_absolute()
    return Definition(
        name=name,
        layers=tuple(layer.name for layer in layers),
        parent=parent,
        sections=_sections(lock, first, end),
        files=tuple(file for layer in layers for file in _staged(layer)),
        plain_http=not first and bootstrap.image is not None and bootstrap.image.insecure,
        origin=origin if is_local and not first else None,
        gpus=tuple(gpu for layer in layers for gpu in gpus_of(layer.arguments)),
        gpu_of_wheels=None if all(wheel.file.endswith(_PURE) for wheel in wheels) else lock.gpu,
    )


def _needs(stack: Sequence[LockedLayer], at: int) -> set[int]:
    """Return the positions in the stack of the layers that a layer requires, directly or indirectly."""
    layer = stack[at]
    if layer.name == OWN_PACKAGES:  # everything below was a constraint for its packages
        return {*range(at)}
    wanted = {need.component for need in layer.layer.needs_of(layer.release)}
    found: set[int] = set()
    for below in range(at):
        one = stack[below]
        has = {one.name, *one.layer.provides, *one.versions}
        if wanted & has:
            found |= {below, *_needs(stack, below)}
    return found


def _sections(lock: Lock, first: int, end: int) -> Sections:
    stack, layers = lock.stack[:end], lock.stack[first:end]
    bodies = "".join(_run(layer, layer.layer.post, lock, script="post.sh", work=True) for layer in layers)
    # A child's %test replaces its parent's, so each definition contains all tests up to its layer.
    tests = "".join(
        _run(layer, layer.layer.test, lock, script="test.sh", work=False) for layer in stack if layer.layer.test
    )
    exports = "".join(_exports(layer) for layer in stack)
    # One label per layer: an engine does not let a child replace a label of its parent.
    names = [(f"{LAYER_LABEL}{number:02}", layer.name) for number, layer in enumerate(stack, start=1)][first:]
    sections = Sections(
        Header("localimage", f"{first:02}-{lock.stack[first - 1].name}.sif") if first else _bootstrap_header(lock),
        files=tuple((file.path, file.target) for one in layers for file in _staged(one)),
        environment=tuple(variable for layer in layers for variable in _environment(layer)),
        post="set -euo pipefail\numask 022\n"
        f'MAKEFLAGS="-j$(getconf _NPROCESSORS_ONLN)"\nexport MAKEFLAGS\n{bodies}{CLEAN}',
        test=f"#!/bin/bash\nset -euo pipefail\n{exports}{tests}" if tests else "",
        labels=tuple(names if first else [(VERSION_LABEL, __version__), *names]),
    )
    for line in sections.text.splitlines():
        if len(line.encode()) > LINE_LIMIT_BYTES:
            what = f"the line {line[:40]!r}… is longer than {LINE_LIMIT_BYTES} bytes, which the engine cannot read"
            raise DefinitionError(what, where=layers[-1].layer.name, hint="put long text into a file of the layer")
    return sections


def _bootstrap_header(lock: Lock) -> Header:
    bootstrap = lock.bootstrap
    if bootstrap.agent == DEBOOTSTRAP:
        header = Header(bootstrap.agent, bootstrap.origin, bootstrap.mirror_url, bootstrap.include)
    else:
        header = Header(bootstrap.agent, f"{bootstrap.image or bootstrap.origin}")
    for word in (header.agent, header.origin, header.mirror_url or "", *header.include):
        if "{{" in word or not word.isprintable():
            raise DefinitionError(f"{word!r} is not allowed in the header of a definition", where=lock.base.layer.name)
    return header


def _staged(layer: LockedLayer) -> Iterable[StagedFile]:
    folder = f"files/{layer.name}"
    for name, file in layer.layer.staged.items():
        yield StagedFile(f"{folder}/files/{name}", file)
    for source in layer.sources:
        yield StagedFile(f"{folder}/source/{source.name}/{source.file}", source)
    for wheel in layer.wheels:
        yield StagedFile(f"{folder}/wheels/{wheel.file}", wheel)


def _environment(layer: LockedLayer) -> Iterable[tuple[str, str]]:
    where = f"{layer.name}/layer.toml [environment]"
    for name, value in layer.set_environment.items():
        yield name, quote_sh(value, where)
    for name, value in layer.prepend_environment.items():
        yield name, f'{quote_sh(value, where)}"${{{name}:+:${name}}}"'


def _exports(layer: LockedLayer) -> str:
    return "".join(f"{export(variable)}\n" for variable in _environment(layer))


def _run(layer: LockedLayer, body: str | None, lock: Lock, *, script: str, work: bool) -> str:
    """Return the text that runs a script in a subshell: an `exit 0`, a `cd` or a variable affects nothing else."""
    name = layer.name
    variables = dict(layer.arguments)
    if work:
        variables |= {
            source.variable: f"{BUILD_FOLDER}/{name}/source/{source.name}/{source.file}" for source in layer.sources
        }
        variables["KEPT"] = f"{BUILD_FOLDER}/{name}/kept"
        variables["LAYER_FILES"] = f"{BUILD_FOLDER}/{name}/files"
        if layer.wheels or (lock.resolved and wants_python(layer)):
            variables["WHEELS"] = f"{BUILD_FOLDER}/{name}/wheels"
        if name == OWN_PACKAGES and lock.request.replaced:
            variables["REPLACED"] = " ".join(sorted(lock.request.replaced))
        if layer is lock.base:
            variables["INCLUDE"] = " ".join(lock.bootstrap.include)
            variables["MIRROR"] = lock.bootstrap.mirror_url or ""
    lines = ["("]
    lines += (f"export {key}={quote_bash(value)}" for key, value in variables.items())
    if work:
        lines += [f"mkdir -p {BUILD_FOLDER}/{name}/work", f"cd {BUILD_FOLDER}/{name}/work"]
    lines.append(f"{SCRIPT_MARK}{name}, {script}")
    text = "\n".join(lines) + "\n" + checked_body(body or "", f"{layer.layer.folder}/{script}") + ")\n"
    if work:
        # In a flat definition, too, the layers above find these variables, as in the environment of a container.
        text += _exports(layer)
    return text
