"""Python packages that do not belong beside the others: for another GPU, or compiled for another torch or NumPy."""

from __future__ import annotations

import contextlib
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from lumiimg.elf.facts import exported_symbols, undefined_symbols
from lumiimg.elf.system import facts_at
from lumiimg.errors import BadInputError
from lumiimg.findings import Code, Severity
from lumiimg.gpu.cuda import is_in_the_way
from lumiimg.host.root_queries import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.check.registry import Findings
    from lumiimg.host.job_process import JobProcess
    from lumiimg.image import Image, RootFileSystem

_DIST_INFO = re.compile(r"([A-Za-z0-9._]{1,128})-([A-Za-z0-9.+!_]{1,64})\.dist-info")
_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_MOST_MODULES = 2000
_LARGEST_MODULE_BYTES = 4 << 20
_MOST_READ_BYTES = 64 << 20
_SHOWN = 8


def judge_python(image: Image, job: JobProcess | None, facts: Mapping[str, Any], found: Findings) -> None:
    """Judge the distributions beside the framework of a job; without one there is no folder that counts."""
    folder = job.package.rpartition("/")[0] if job and job.package else None
    if folder is None:
        return
    root = image.root
    names = names_in(root, folder)
    infos = filter(None, map(_DIST_INFO.fullmatch, names))
    versions: dict[str, str] = {canonicalize_name(info[1]): info[2] for info in infos}
    _judge_cuda(versions, folder, found)
    modules = list(islice(_modules(root, folder), _MOST_MODULES))
    _judge_torch(root, folder, modules, facts, found)
    if "numpy" in versions and _major(versions["numpy"]) >= 2:
        _judge_numpy(root, modules, versions["numpy"], found)


def _major(version: str) -> int:
    return int(version.partition(".")[0]) if version.partition(".")[0].isdecimal() else 0


def _judge_cuda(versions: Mapping[str, str], folder: str, found: Findings) -> None:
    wrong = sorted(f"{name} {of}" for name, of in versions.items() if is_in_the_way(name, of))
    if wrong:
        what = f"packages for NVIDIA's GPUs are among those for ROCm: {', '.join(wrong[:3])}"
        found.add(Code.IMAGE_CUDA_PACKAGES, Severity.INFO, what, where=folder, evidence=tuple(wrong[:_SHOWN]))


def _modules(root: RootFileSystem, folder: str) -> Iterator[str]:
    """Yield the compiled modules beside torch and NumPy."""
    own = (f"{folder}/torch/", f"{folder}/numpy/", f"{folder}/numpy.libs/")
    for path, _ in root.walk(folder):
        if path.endswith(".so") and not path.startswith(own):
            yield path


def _judge_torch(
    root: RootFileSystem, folder: str, modules: list[str], facts: Mapping[str, Any], found: Findings
) -> None:
    lines: list[str] = []
    where = None
    prefixes = tuple(facts["c10"]["prefixes"])
    offered = (
        offered_by(root, f"{folder}/torch/lib/libc10.so") if root.is_file(f"{folder}/torch/lib/libc10.so") else None
    )
    for path in modules if offered else ():
        of_module = facts_at(root, path)
        if of_module is None or "libc10.so" not in of_module.needed:
            continue
        lacking = [name for name in asked_by(root, path) if name.startswith(prefixes) and name not in (offered or ())]
        if lacking:
            where = where or path
            lines.append(f"{path}: undefined symbol: {min(lacking)}")
    if lines:
        what = f"built for another torch: {lines[0]}"
        found.add(Code.IMAGE_OTHER_TORCH, Severity.INFO, what, where=where, evidence=tuple(lines[:_SHOWN]))


def _judge_numpy(root: RootFileSystem, modules: list[str], version: str, found: Findings) -> None:
    lines: list[str] = []
    left = _MOST_READ_BYTES
    for path in modules:
        if not _MODULE.fullmatch(path):
            continue
        with contextlib.suppress(OSError, BadInputError), contextlib.closing(root.open(path)) as file:
            if file.size <= min(_LARGEST_MODULE_BYTES, left):
                left -= file.size
                data = file.read_at(0, file.size)
                if _OLD_NUMPY in data and _NEW_NUMPY not in data:
                    lines.append(f"{path}: compiled with NumPy 1")
    if lines:
        what = f"for NumPy 1, but the image has NumPy {version}: {lines[0]}"
        found.add(Code.IMAGE_NUMPY, Severity.INFO, what, evidence=tuple(lines[:_SHOWN]))


def offered_by(root: RootFileSystem, path: str) -> frozenset[str]:
    """Return the symbols that a file defines for others; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, BadInputError), contextlib.closing(root.open(path)) as file:
        return exported_symbols(file)
    return frozenset()


def asked_by(root: RootFileSystem, path: str) -> frozenset[str]:
    """Return the symbols that a file asks others for; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, BadInputError), contextlib.closing(root.open(path)) as file:
        return frozenset(symbol.name for symbol in undefined_symbols(file))
    return frozenset()
