"""Whose RCCL it is: torch's own files as its RECORD has them or not, a torch for CPUs, JAX, TensorFlow, CuPy, SGLang, vLLM."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, rpath, runpath
from tests.shared.job import sources
from tests.shared.job.changes import NotHereError, _other_torch
from tests.shared.job.kinds.place import Planted, own, packages_of, tag_of, torch_of
from tests.shared.job.kinds.startup_code import NEWER, newer_rccl
from tests.shared.job.world import BY_JAX, BY_TORCH, BY_VLLM, JAX, ROCM, VLLM

if TYPE_CHECKING:
    import random

    from tests.shared.job.world import World


# -- F: what RECORD says --


def _record(world: World, torch: str, *, hashes: bool = True) -> None:
    lines = []
    folder = world.at(torch).parent
    for file in sorted(world.at(torch).rglob("*")):
        if file.is_file() and not file.is_symlink():
            data = file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(
                f"{file.relative_to(folder)},{f'sha256={digest}' if hashes else ''},{len(data) if hashes else ''}\n"
            )
    info = "torch-2.4.0+rocm6.2.dist-info"
    lines += [f"{info}/METADATA,,\n", f"{info}/RECORD,,\n"]
    path = f"{torch.rpartition('/')[0]}/{info}"
    world.put(f"{path}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.4.0+rocm6.2\n", 0o644)
    world.put(f"{path}/RECORD", "".join(lines), 0o644)


_EDITS = {
    "sets NCCL_NET": "import os\nos.environ['NCCL_NET'] = 'Socket'\n",
    "sets the plugin": "import os\nos.environ.setdefault('NCCL_NET_PLUGIN', 'none')\n",
    "sets FI_PROVIDER": "import os\nos.environ['FI_PROVIDER'] = 'tcp'\n",
    "opens another RCCL": f"import ctypes\nctypes.CDLL({NEWER!r}, mode=ctypes.RTLD_GLOBAL)\n",
    "sets threads": "import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\n",
    "a comment": "# changed by us\n",
    "a blank line": "\n",
    "a print": "import sys\nprint('torch', file=sys.stderr)\n",
    "raises": "raise ImportError('no')\n",
}
"""What somebody writes into a file of torch."""


def record_of_torch(world: World, draw: random.Random) -> Planted:
    torch = torch_of(world)
    if world.at(torch).is_symlink():
        raise NotHereError
    world.put(f"{torch}/_tensor.py", "class Tensor:\n    pass\n", 0o644)
    world.put(f"{torch}/version.py", "__version__ = '2.4.0+rocm6.2'\nhip = '6.2.41133'\ncuda = None\n", 0o644)
    init = f"{torch}/__init__.py"
    if draw.random() < 0.5:  # as torch does
        text = world.at(init).read_text()
        world.put(init, f"from torch.version import __version__\n{text}from torch._tensor import Tensor\n", 0o644)
    state = draw.choice(
        [
            "true",
            "true",
            "edited",
            "edited",
            "edited",
            "edited of its own",
            "no hashes",
            "gone",
            "library",
            "other file",
            "more files",
        ]
    )
    if state == "gone":
        return Planted("no RECORD")
    if state == "edited of its own":  # the distribution has it so
        what = draw.choice(["sets threads", "a comment", "a blank line", "a print"])
        world.put(init, _EDITS[what] + world.at(init).read_text(), 0o644)
        _record(world, torch)
        return Planted(f"as RECORD has it: {what}")
    _record(world, torch, hashes=state != "no hashes")
    if state in {"true", "no hashes"}:
        return Planted(f"RECORD {state}")
    if state == "library":
        name = draw.choice(["lib/libtorch_global_deps.so", "lib/libtorch_hip.so"])
        with own(world, f"{torch}/{name}").open("ab") as stream:
            stream.write(b"\0" * 64)
        return Planted("a library of another digest", f"{torch}/{name}")
    if state == "more files":
        world.put(f"{torch}/__pycache__/version.{tag_of(world)}.pyc", b"", 0o644)
        world.put(f"{torch}/more.py", "", 0o644)
        return Planted("files that RECORD does not have")
    what = draw.choice([*_EDITS])
    if "another RCCL" in what:
        newer_rccl(world)
    file = init if state == "edited" else f"{torch}/{draw.choice(['_tensor.py', 'version.py'])}"
    text = world.at(file).read_text()
    world.put(file, text + _EDITS[what] if draw.random() < 0.5 else _EDITS[what] + text, 0o644)
    return Planted(f"{file.rpartition('/')[2] if state == 'edited' else 'another file'} edited: {what}", file)


# -- G: who else has an RCCL --


def _cpu_torch(world: World) -> None:
    """A torch as of PyTorch's index for CPUs."""
    folder = packages_of(world)
    torch = f"{folder}/torch"
    cpu = library(world.new(f"{torch}/lib/libtorch_cpu.so"), *rpath("$ORIGIN"), source="int cpu;")
    library(world.new(f"{torch}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), cpu)
    library(
        world.new(f"{torch}/_C.{tag_of(world)}-x86_64-linux-gnu.so"),
        *rpath("$ORIGIN/lib"),
        cpu,
        source=sources.EXTENSION,
    )
    text = "import ctypes, os\nhere = os.path.dirname(os.path.abspath(__file__))\nctypes.CDLL(os.path.join(here, 'lib', 'libtorch_global_deps.so'), mode=ctypes.RTLD_GLOBAL)\nfrom torch._C import *\ndef all_reduce():\n    return 'gloo'\n"
    world.put(f"{torch}/__init__.py", text, 0o644)
    world.put(f"{torch}/version.py", "__version__ = '2.4.0+cpu'\nhip = None\ncuda = None\n", 0o644)
    world.put(
        f"{folder}/torch-2.4.0+cpu.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.4.0+cpu\n",
        0o644,
    )


def _jax(world: World, search: str = ROCM) -> None:
    path = f"{packages_of(world)}/jax_plugins/xla_rocm7/xla_rocm_plugin.so"
    library(world.new(path), *runpath(search), world.rccl_of_rocm("2.20.5"), source=sources.TORCH_HIP)
    world.put(f"{packages_of(world)}/jax_plugins/__init__.py", "", 0o644)
    world.put(f"{packages_of(world)}/jax_plugins/xla_rocm7/__init__.py", JAX, 0o644)


_BY_CTYPES = """\
import ctypes, os
here = os.path.dirname(os.path.abspath(__file__))
_library = ctypes.CDLL(os.path.join(here, {name!r}))
_library.all_reduce.restype = ctypes.c_char_p
def all_reduce():
    return _library.all_reduce().decode()
"""


def _tensorflow(world: World, search: str = ROCM) -> None:
    folder = f"{packages_of(world)}/tensorflow"
    library(
        world.new(f"{folder}/libtensorflow_cc.so.2"),
        *runpath(search),
        world.rccl_of_rocm("2.20.5"),
        source=sources.TORCH_HIP,
    )
    world.put(f"{folder}/__init__.py", _BY_CTYPES.format(name="libtensorflow_cc.so.2"), 0o644)


def _cupy(world: World, search: str = ROCM) -> None:
    folder = f"{packages_of(world)}/cupy_backends/cuda/libs"
    name = f"nccl.{tag_of(world)}-x86_64-linux-gnu.so"
    source = sources.TORCH_HIP + sources.EXTENSION.replace("PyInit__C", "PyInit_nccl").replace("torch._C", "nccl")
    library(world.new(f"{folder}/{name}"), *runpath(search), world.rccl_of_rocm("2.20.5"), source=source)
    for each in ("cupy_backends", "cupy_backends/cuda", "cupy_backends/cuda/libs"):
        world.put(f"{packages_of(world)}/{each}/__init__.py", "", 0o644)
    world.put(
        f"{packages_of(world)}/cupy/__init__.py", _BY_CTYPES.format(name=f"../cupy_backends/cuda/libs/{name}"), 0o644
    )


_FRAMEWORKS = {
    "jax": (_jax, BY_JAX),
    "tensorflow": (_tensorflow, "import tensorflow\nnetwork = tensorflow.all_reduce()"),
    "cupy": (_cupy, "import cupy\nnetwork = cupy.all_reduce()"),
}


def other_frameworks(world: World, draw: random.Random) -> Planted:
    if world.program is not None:
        raise NotHereError
    names = draw.sample([*_FRAMEWORKS], draw.choice([0, 1, 1, 2]))
    cpu = draw.random() < 0.5 or not names
    if cpu:
        if world.package is None and world.at(packages_of(world)).joinpath("jax_plugins").exists():
            raise NotHereError
        if world.package is not None:
            import shutil

            if world.at(world.package).is_symlink():
                raise NotHereError
            shutil.rmtree(world.at(world.package))
        _cpu_torch(world)
        world.package = None
    search = ROCM
    other = draw.random() < 0.3 and bool(names)
    if other:
        newer_rccl(world)
        search = f"/opt/newer/lib:{ROCM}"
    jobs = []
    for name in names:
        make, job = _FRAMEWORKS[name]
        make(world, search)
        jobs.append(job)
    if not cpu:
        jobs += world.jobs
    world.jobs = tuple(jobs) or (BY_TORCH,)
    shown = " + ".join(sorted(names)) or "nothing"
    return Planted(f"{'torch for CPUs' if cpu else 'its torch'} beside {shown}{', of a newer RCCL' if other else ''}")


_SGLANG = VLLM.replace("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")


def named_rccl(world: World, draw: random.Random) -> Planted:
    """A framework opens the RCCL that a variable names."""
    torch_of(world)
    which = draw.choice(["vllm", "sglang", "sglang", "neither"])
    text = {"vllm": VLLM, "sglang": _SGLANG}.get(which)
    own_job = f"import {which}\nnetwork = {which}.all_reduce()" if text else None
    if text:
        if BY_VLLM in world.jobs and which == "vllm":
            own_job = None
        world.put(f"{packages_of(world)}/{which}/__init__.py", text, 0o644)
        folder = {
            "vllm": "distributed/device_communicators/pynccl_wrapper.py",
            "sglang": "srt/distributed/device_communicators/pynccl_wrapper.py",
        }[which]
        world.put(f"{packages_of(world)}/{which}/{folder}", "", 0o644)
    if own_job:
        world.jobs = (*world.jobs, own_job)
    newer_rccl(world)
    value = draw.choice(
        [NEWER, world.rccl_files[0], f"{ROCM}/librccl.so.1", "librccl.so.1", "/opt/gone/librccl.so.1", "", "librccl.so"]
    )
    variable = draw.choice(["VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH"])
    world.set(**{variable: value})
    return Planted(f"{which}; {variable}={value.replace(world.rccl_files[0], 'THE ONE OF TORCH')}")


def other_python_beside(world: World, draw: random.Random) -> Planted:
    """A second torch in the same folder of packages by another name, and distributions of other names."""
    torch = torch_of(world)
    name = draw.choice(["torch_old", "torchvision", "torchaudio", "pytorch", "functorch"])
    _other_torch(world, "2.30.4")
    world.move(f"{world.folder_of('/opt/second')}/torch", f"{torch.rpartition('/')[0]}/{name}")
    return Planted(f"{name} beside torch")
