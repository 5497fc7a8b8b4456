"""Stand-ins for the wheels of other indexes than everybody's: PyTorch's for ROCm, and vLLM's.

Each has name and version of the real one. What it requires is what the release of the same version requires that the
general index has, which is for CUDA: without CUDA's parts, and with the triton that the row of the catalogue pins.
Its content is `standin/torch`, whose every name is an empty class, so that what is built on torch is really imported.
"""

from __future__ import annotations

import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lumiimg.resolve.python_target import ROCM_TRITONS
from tools.rehearsal.archives import archive_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.catalog.releases import Release
    from tools.rehearsal.index import PackageIndex

STAND_IN = Path(__file__).parent / "standin"
_AT_ONCE = 8
"""Each waits for the index."""
_FOR_CUDA = re.compile(r"(nvidia|cuda|triton)(-|$)")
_SMALL = """\
'''A stand-in: every name of {name} is an empty class.'''

from torch.standin import stand_in

__version__ = "{version}"
stand_in(__name__)
"""


def stand_in_wheels(releases: Iterable[Release], index: PackageIndex, folder: Path) -> dict[str, list[Path]]:
    """Return a wheel for each pin of the releases that name indexes of their own, by project."""
    wanted: dict[tuple[str, str], Release] = {}
    for release in releases:
        for pin in map(Requirement, release.wheels if release.indexes else ()):
            (version,) = (one.version for one in pin.specifier)
            wanted.setdefault((canonicalize_name(pin.name), version), release)
        for project in release.beside:
            wanted.setdefault((project, _version_beside(release)), release)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        made = pool.map(lambda one: _made(one[0], one[1], wanted[one], index, folder), wanted)
    found: dict[str, list[Path]] = {}
    for (project, _), wheel in zip(wanted, made, strict=True):
        found.setdefault(project, []).append(wheel)
    return found


def _version_beside(release: Release) -> str:
    """Return the version of what comes with a release, which is made for the torch of it."""
    return f"1+{Version(release.has['torch']).local}"


def _made(project: str, version: str, release: Release, index: PackageIndex, folder: Path) -> Path:
    module = "triton" if project in ROCM_TRITONS else project
    name = project.replace("-", "_")
    target = folder / f"{name}-{version}-py3-none-any.whl"
    if not target.exists():
        about = {"name": project, "version": version}
        write_wheel(target, about, _requirements(module, version, release, index), _content(module, version))
    return target


def _requirements(module: str, version: str, release: Release, index: PackageIndex) -> list[str]:
    if module == "vllm":
        asked = vllm_requirements(index.file("vllm", f"-{Version(version).public}.tar.gz"))
        pins = [pin for pin in release.wheels if not pin.startswith("vllm==")]
        pins += [f"{name}=={_version_beside(release)}" for name in release.beside]
        pinned = {Requirement(pin).name for pin in pins}  # as upstream's tools/vllm-rocm/pin_rocm_dependencies.py
        return [*pins, *(text for text in asked if canonicalize_name(Requirement(text).name) not in pinned)]
    if module in release.beside:
        return [f"torch=={release.has['torch']}"] if module.startswith("torch") else []
    # AMD's have more parts than everybody's: torchaudio 2.11.0.2, torchvision 0.29.0a0
    public = ".".join(map(str, Version(version).release[:3]))
    asked = [text for text in index.requirements(module, public) if not _FOR_CUDA.match(Requirement(text).name)]
    if module != "torch":
        return [text if not text.startswith("torch==") else f"torch=={release.has['torch']}" for text in asked]
    return [*asked, *(pin for pin in release.wheels if canonicalize_name(Requirement(pin).name) in ROCM_TRITONS)]


def _content(module: str, version: str) -> dict[str, str]:
    if module != "torch":
        text = _SMALL.format(name=module, version=version)
        folder = module.replace("-", "_")
        return {f"{folder}/__init__.py": text} | ({"vllm/_rocm_C.py": ""} if module == "vllm" else {})
    files = {str(path.relative_to(STAND_IN)): path.read_text() for path in (STAND_IN / "torch").rglob("*.py")}
    return files | {"torch/version.py": f'__version__ = "{version}"\nhip = "{hip_of(version)}"\ncuda = None\n'}


def hip_of(torch: str) -> str:
    """Return the HIP that a torch names: that of its ROCm, with a patch level as long as HIP's are."""
    numbers = (torch.partition("+rocm")[2] or "7.2").split(".")
    return f"{numbers[0]}.{numbers[1]}.{numbers[2] if len(numbers) > 2 else 0}1134"


def write_wheel(target: Path, about: dict[str, str], requires: list[str], content: dict[str, str]) -> None:
    """Write a wheel, the same bytes each time."""
    stem = f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {about['name']}", f"Version: {about['version']}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    files = content | {
        f"{stem}/METADATA": "\n".join([*lines, ""]),
        f"{stem}/WHEEL": "Wheel-Version: 1.0\nGenerator: rehearsal\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{stem}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{stem}/RECORD"])
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 11, 21, 0, 0, 0)), text)


def vllm_requirements(archive: Path) -> list[str]:
    """Return what vLLM's setup.py writes into a wheel for ROCm: the lines of requirements/rocm.txt and what it includes."""
    files = archive_files(archive)
    found, waiting = list[str](), ["rocm.txt"]
    while waiting:
        for line in files[f"requirements/{waiting.pop()}"].decode().splitlines():
            text = line.partition("#")[0].strip()
            if text.startswith("-r "):
                waiting.append(text.removeprefix("-r ").strip())
            elif text and not text.startswith("-"):
                found.append(text)
    return found
