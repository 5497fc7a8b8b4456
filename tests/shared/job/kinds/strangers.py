"""Whether a user who owns nothing of it may read the image: modes of files, and of folders on the way."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from tests.shared.elf_builder import LOADER
from tests.shared.job.changes import NotHereError
from tests.shared.job.kinds.place import (
    Planted,
    chmod,
    home_of,
    packages_of,
    prefix_of,
    second_torch,
    stdlib_of,
    tag_of,
)
from tests.shared.job.world import ROCM

if TYPE_CHECKING:
    import random

    from tests.shared.job.world import World

_FILE_MODES = (0o600, 0o600, 0o640, 0o400, 0o000, 0o604, 0o700, 0o711, 0o755, 0o644, 0o660, 0o601)
_FOLDER_MODES = (0o700, 0o700, 0o750, 0o711, 0o744, 0o000, 0o755, 0o1777, 0o701, 0o704)


def _targets(world: World) -> dict[str, str]:
    """Return files and folders by what they are."""
    found = {
        "ld.so": f"/usr{LOADER}", "libc": f"{world.system.folder}/libc.so.6", "libm": f"{world.system.folder}/libm.so.6",
        "libfabric": f"{world.system.folder}/libfabric.so.1", "libcxi": f"{world.system.folder}/libcxi.so.1", "plugin": world.plugin_file,
        "plugin's folder": world.plugin_file.rpartition("/")[0], "RCCL": world.rccl_files[0], "RCCL's folder": world.rccl_files[0].rpartition("/")[0],
        "HIP": f"{world.rccl_files[0].rpartition('/')[0]}/libamdhip64.so.6", "/opt": "/opt", "/usr": "/usr", "/usr/lib": "/usr/lib", "/etc": "/etc", "/": "/",
        "ld.so's folder": "/usr/lib64", "libraries' folder": world.system.folder, "HSA": f"{ROCM}/libhsa-runtime64.so.1", "/opt/rocm": "/opt/rocm", "/tmp": "/tmp",
        "ld.so.cache": "/etc/ld.so.cache", "ld.so.conf": "/etc/ld.so.conf", "os-release": "/etc/os-release",
    }  # fmt: skip
    if world.program is not None:
        found["the program"] = world.program
        return found
    home, prefix, stdlib, packages = home_of(world), prefix_of(world), stdlib_of(world), packages_of(world)
    found |= {
        "interpreter": f"{home}/bin/python{world.system.version}", "bin": f"{home}/bin", "standard library": stdlib, "encodings": f"{stdlib}/encodings",
        "encodings/__init__": f"{stdlib}/encodings/__init__.py", "encodings/utf_8": f"{stdlib}/encodings/utf_8.py", "encodings/latin_1": f"{stdlib}/encodings/latin_1.py",
        "os.py": f"{stdlib}/os.py", "site.py": f"{stdlib}/site.py", "ctypes": f"{stdlib}/ctypes/__init__.py", "re": f"{stdlib}/re/__init__.py",
        "ctypes' folder": f"{stdlib}/ctypes", "struct": f"{stdlib}/struct.py", "lib-dynload": f"{stdlib}/lib-dynload", "abc": f"{stdlib}/abc.py", "codecs": f"{stdlib}/codecs.py",
        "_ctypes": f"{stdlib}/lib-dynload/_ctypes.{tag_of(world)}-x86_64-linux-gnu.so", "site folder": packages, "heapq": f"{stdlib}/heapq.py", "tokenize": f"{stdlib}/tokenize.py",
    }  # fmt: skip
    if prefix != home:
        found |= {
            "pyvenv.cfg": f"{prefix}/pyvenv.cfg",
            "environment": prefix,
            "environment's bin": f"{prefix}/bin",
            "environment's lib": f"{prefix}/lib",
        }
    if world.package is not None:
        torch = world.package
        found |= {
            "torch/__init__": f"{torch}/__init__.py", "torch": torch, "torch/lib": f"{torch}/lib", "_C": f"{torch}/_C.{tag_of(world)}-x86_64-linux-gnu.so",
            "libtorch_hip": f"{torch}/lib/libtorch_hip.so", "global deps": f"{torch}/lib/libtorch_global_deps.so", "vllm": f"{packages}/vllm/__init__.py",
        }  # fmt: skip
    return {name: path for name, path in found.items() if world.at(path).exists()}


def modes(world: World, draw: random.Random) -> Planted:
    targets = _targets(world)
    name = draw.choice([*targets])
    path = targets[name]
    place = world.at(path)
    if place.is_symlink() or path == "/":  # the container has a root folder of the engine's
        raise NotHereError
    mode = draw.choice(_FOLDER_MODES if place.is_dir() else _FILE_MODES)
    if place.is_dir():
        place.chmod(mode)
    else:
        chmod(world, path, mode)
    return Planted(f"{name} {mode:o}")


def modes_of_startup(world: World, draw: random.Random) -> Planted:
    """Of what Python reads at its start, and need not be there."""
    form = draw.choice(
        [
            "pth",
            "sitecustomize",
            "usercustomize",
            "module in front",
            "package in front",
            "folder in front",
            "zip in front",
            "bytecode",
        ]
    )
    mode = draw.choice([0o600, 0o640, 0o000, 0o644])
    folder_mode = draw.choice([0o700, 0o711, 0o744, 0o755])
    packages = packages_of(world)
    if form == "pth":
        other = second_torch(world)
        world.put(f"{packages}/a.pth", f"import sys; sys.path.insert(0, '{other}')\n", mode)
        return Planted(f"a .pth {mode:o}")
    if form.endswith("customize"):
        if world.at(f"{stdlib_of(world)}/{form}.py").exists():
            raise NotHereError
        world.put(f"{packages}/{form}.py", "import os\nos.environ['NCCL_NET'] = 'Socket'\n", mode)
        return Planted(f"{form} {mode:o}")
    if world.package is None:
        raise NotHereError
    world.set(PYTHONPATH="/opt/front")
    world.at("/opt/front").mkdir(parents=True)
    if form == "module in front":
        world.put("/opt/front/torch.py", "", mode)
        return Planted(f"torch.py in front {mode:o}")
    if form == "package in front":
        world.put("/opt/front/torch/__init__.py", "", 0o644)
        world.at("/opt/front/torch").chmod(folder_mode)
        return Planted(f"torch in front {folder_mode:o}", cause="/opt/front/torch/__init__.py")
    if form == "bytecode":
        if world.package is None:
            raise NotHereError
        world.put(f"{world.package}/__pycache__/__init__.{tag_of(world)}.pyc", b"old", mode)
        return Planted(f"bytecode of torch {mode:o}")
    if form == "zip in front":
        world.put("/opt/front.zip", b"PK", mode)
        world.set(PYTHONPATH="/opt/front.zip")
        return Planted(f"a zip in front {mode:o}")
    world.put("/opt/front/torch.py", "", 0o644)
    world.at("/opt/front").chmod(folder_mode)
    return Planted(f"a folder in front {folder_mode:o}")


def umask_of_builder(world: World, draw: random.Random) -> Planted:
    """A whole part of the image was written with umask 077 or 027."""
    mask = draw.choice([0o077, 0o027, 0o022, 0o007])
    targets = [
        world.package,
        packages_of(world),
        world.plugin_file.rpartition("/")[0],
        ROCM,
        "/opt/plugin",
        stdlib_of(world),
    ]
    folder = draw.choice([path for path in targets if path])
    for file in [world.at(folder), *world.at(folder).rglob("*")]:
        if not file.is_symlink() and (file.is_dir() or file.is_file()):
            mode = stat.S_IMODE(file.stat().st_mode) & ~mask
            if file.is_dir():
                file.chmod(mode)
            else:
                chmod(world, "/" + str(file.relative_to(world.root)), mode)
    shown = folder.replace(world.system.version, "X")
    return Planted(f"umask {mask:03o} of {shown}")


def closed_folders(world: World, draw: random.Random) -> Planted:
    """Something lies in a folder that is its owner's, and a link leads there."""
    targets = _targets(world)
    name = draw.choice(
        [name for name, path in targets.items() if path.count("/") > 2 and not world.at(path).is_symlink()]
    )
    path = targets[name]
    closed = draw.choice(["/root", "/root", "/home/builder"])
    world.at(closed).mkdir(parents=True, exist_ok=True)
    target = f"{closed}/{path.rpartition('/')[2]}"
    world.move(path, target)
    world.link(path, target)
    mode = draw.choice([0o700, 0o700, 0o755, 0o711])
    world.at(closed).chmod(mode)
    return Planted(f"{name} in a folder {mode:o}")
