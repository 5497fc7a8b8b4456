"""Forms of a torch: a source tree, one file, a zip, an extension module, a folder without code, one without its library."""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import io
import marshal
import zipfile
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, rpath
from tests.shared.job import sources
from tests.shared.job.changes import NotHereError
from tests.shared.job.kinds.place import Planted, home_of, own, packages_of, put, second_torch, tag_of, torch_of
from tests.shared.job.kinds.real_startup import REAL

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.shared.job.world import World

_EASY_FIRST = "import sys; sys.__plen = len(sys.path)\n"
_EASY_LAST = (
    "import sys; new=sys.path[sys.__plen:]; del sys.path[sys.__plen:]; p=getattr(sys,'__egginsert',0); "
    "sys.path[p:p]=new; sys.__egginsert = p+len(new)\n"
)


def forms_of_torch(world: World, draw: random.Random) -> Planted:
    torch = torch_of(world)
    if world.at(torch).is_symlink():
        raise NotHereError
    form = draw.choice([*_FORMS])
    _FORMS[form](world, torch, draw)
    # what no build of torch has: where it works, that is by chance; what setuptools wrote before 2015 is not followed
    files = {"C is a package": f"{torch}/_C/__init__.py", "egg": f"{packages_of(world)}/easy-install.pth"}
    # what a library does as a module is its code
    return Planted(form, files.get(form), "imported as torch" if form in {"extension", "zip"} else None)


def _in_front(world: World, draw: random.Random) -> str:
    """Return a folder that comes before that of torch."""
    world.set(PYTHONPATH="/opt/front")
    world.at("/opt/front").mkdir(parents=True, exist_ok=True)
    return "/opt/front"


def _source_tree(world: World, torch: str, draw: random.Random) -> None:
    """A checkout of torch, whose _C was never built."""
    folder = _in_front(world, draw)
    put(world, f"{folder}/torch/__init__.py", world.at(f"{torch}/__init__.py").read_text())
    put(world, f"{folder}/torch/csrc/Module.cpp", "")
    put(world, f"{folder}/setup.py", "")


def _torch_py(world: World, torch: str, draw: random.Random) -> None:
    put(world, f"{_in_front(world, draw)}/torch.py", draw.choice(["", "def all_reduce():\n    return 'another'\n"]))


def _torch_py_behind(world: World, torch: str, draw: random.Random) -> None:
    put(world, f"{torch}.py", "def all_reduce():\n    return 'another'\n")


def _torch_pyc(world: World, torch: str, draw: random.Random) -> None:
    folder = draw.choice([_in_front(world, draw), torch.rpartition("/")[0]])
    data = (
        bootstrap.MAGIC_NUMBER
        + bytes(12)
        + marshal.dumps(compile("def all_reduce():\n    return 'another'\n", "t", "exec"))
    )
    put(
        world,
        f"{folder}/{draw.choice(['torch.pyc', '__pycache__/torch.' + tag_of(world).replace('cpython', 'cpython') + '.pyc'])}",
        data,
    )


def _extension(world: World, torch: str, draw: random.Random) -> None:
    folder = draw.choice([_in_front(world, draw), torch.rpartition("/")[0]])
    suffix = draw.choice(
        [
            f".{tag_of(world)}-x86_64-linux-gnu.so",
            ".abi3.so",
            ".so",
            ".cpython-39-x86_64-linux-gnu.so",
            f".{tag_of(world)}.so",
        ]
    )
    library(world.new(f"{folder}/torch{suffix}"), source=sources.EXTENSION.replace("PyInit__C", "PyInit_torch"))


def _namespace_in_front(world: World, torch: str, draw: random.Random) -> None:
    """A folder without `__init__.py` loses to a package behind it."""
    put(
        world, f"{_in_front(world, draw)}/torch/{draw.choice(['readme.txt', 'utils/__init__.py', 'lib/libc10.so'])}", ""
    )


def _namespace_alone(world: World, torch: str, draw: random.Random) -> None:
    own(world, f"{torch}/__init__.py").unlink()


def _namespace_and_another(world: World, torch: str, draw: random.Random) -> None:
    _namespace_alone(world, torch, draw)
    other = second_torch(world)
    put(world, f"{packages_of(world)}/z.pth", f"{other}\n")


def _init_pyc(world: World, torch: str, draw: random.Random) -> None:
    text = world.at(f"{torch}/__init__.py").read_text()
    data = bootstrap.MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(text, f"{torch}/__init__.py", "exec"))
    own(world, f"{torch}/__init__.py").unlink()
    put(world, f"{torch}/{draw.choice(['__init__.pyc', '__pycache__/__init__.' + tag_of(world) + '.pyc'])}", data)


def _c_name(world: World) -> str:
    return f"_C.{tag_of(world)}-x86_64-linux-gnu.so"


def _no_c(world: World, torch: str, draw: random.Random) -> None:
    world.remove(f"{torch}/{_c_name(world)}")


def _c_of_another(world: World, torch: str, draw: random.Random) -> None:
    suffix = draw.choice(["cpython-310-x86_64-linux-gnu.so", f"{tag_of(world)}t-x86_64-linux-gnu.so", f"{tag_of(world)}-aarch64-linux-gnu.so", f"{tag_of(world)}-x86_64-linux-musl.so", "cpython-313-x86_64-linux-gnu.so", "pyd", "dylib", "so.1", f"{tag_of(world)}d-x86_64-linux-gnu.so"])  # fmt: skip
    world.move(f"{torch}/{_c_name(world)}", f"{torch}/_C.{suffix}")


def _c_by_another_name(world: World, torch: str, draw: random.Random) -> None:
    world.move(f"{torch}/{_c_name(world)}", f"{torch}/_C.{draw.choice(['abi3.so', 'so'])}")


def _c_and_another(world: World, torch: str, draw: random.Random) -> None:
    """Of two suffixes the more special one comes first; a broken one beside it does no harm."""
    put(
        world,
        f"{torch}/_C.{draw.choice(['abi3.so', 'so', 'cpython-310-x86_64-linux-gnu.so', 'py', 'pyi', 'pyc'])}",
        "not a library",
    )


def _stubs(world: World, torch: str, draw: random.Random) -> None:
    """torch has a folder `_C` with stubs beside the module."""
    put(world, f"{torch}/_C/__init__.pyi", "")
    put(world, f"{torch}/_C/_autograd.pyi", "")


def _c_is_a_package(world: World, torch: str, draw: random.Random) -> None:
    put(world, f"{torch}/_C/__init__.py", "")


def _c_without_its_entry(world: World, torch: str, draw: random.Random) -> None:
    library(
        world.new(f"{torch}/{_c_name(world)}"),
        *rpath("$ORIGIN/lib"),
        world.at(f"{torch}/lib/libtorch_hip.so"),
        source=sources.EXTENSION.replace("PyInit__C", "PyInit_other"),
    )


def _c_is_empty(world: World, torch: str, draw: random.Random) -> None:
    put(world, f"{torch}/{_c_name(world)}", b"")


def _c_is_a_broken_link(world: World, torch: str, draw: random.Random) -> None:
    world.link(f"{torch}/{_c_name(world)}", "/opt/gone/_C.so")


def _no_global_deps(world: World, torch: str, draw: random.Random) -> None:
    world.remove(f"{torch}/lib/libtorch_global_deps.so")


def _zip(world: World, torch: str, draw: random.Random) -> None:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        archive.writestr(
            draw.choice(["torch/__init__.py", "torch.py", "other/__init__.py", "sub/torch.py"]),
            "def all_reduce():\n    return 'of a zip'\n",
        )
    place = draw.choice(["variable", "pth", "number"])
    path = (
        f"{home_of(world)}/lib/python{world.system.version.replace('.', '')}.zip"
        if place == "number"
        else "/opt/front.zip"
    )
    put(world, path, kept.getvalue())
    if place == "variable":
        world.set(PYTHONPATH=path + draw.choice(["", "/sub"]))
    if place == "pth":
        put(world, f"{packages_of(world)}/zip.pth", f"{path}\n")


def _not_a_zip(world: World, torch: str, draw: random.Random) -> None:
    put(world, "/opt/front.zip", draw.choice([b"", b"not a zip", b"PK\x03\x04 broken"]))
    world.set(PYTHONPATH="/opt/front.zip")


def _moved_away(world: World, torch: str, draw: random.Random) -> None:
    world.move(
        torch,
        draw.choice(
            ["/opt/torch", f"{torch}-2.4.0", f"{torch}.bak", f"{torch.rpartition('/')[0]}/Torch", f"{torch}.egg/torch"]
        ),
    )


def _behind_a_link(world: World, torch: str, draw: random.Random) -> None:
    target = draw.choice(["/opt/elsewhere/torch", "/opt/elsewhere/other_name"])
    world.move(torch, target)
    world.link(torch, target)


def _init_behind_a_link(world: World, torch: str, draw: random.Random) -> None:
    put(world, "/opt/elsewhere/init.py", world.at(f"{torch}/__init__.py").read_text())
    world.link(f"{torch}/__init__.py", "/opt/elsewhere/init.py")


def _init_behind_a_broken_link(world: World, torch: str, draw: random.Random) -> None:
    world.link(f"{torch}/__init__.py", "/opt/gone/init.py")


def _init_is_a_folder(world: World, torch: str, draw: random.Random) -> None:
    own(world, f"{torch}/__init__.py").unlink()
    world.at(f"{torch}/__init__.py").mkdir()


def _editable(world: World, torch: str, draw: random.Random) -> None:
    """torch as a checkout, by setuptools' finder; torch in site-packages comes before a finder that is last."""
    files = REAL["setuptools editable finder"]
    bad = second_torch(world)
    gone = draw.random() < 0.6
    target = f"{bad}/torch"
    if gone:
        target = draw.choice([target, "/opt/src/torch", "/opt/src/torch"])
        world.move(torch, "/opt/src/torch")
    for path, text in files.items():
        changed = text.replace("'foo.bar': '/opt/src/other/bar'", "'other_bar': '/opt/src/other'").replace(
            "'foo': '/opt/src/foo'", f"'torch': '{target}'"
        )
        put(world, f"{packages_of(world)}/{path}", changed)


def _editable_path(world: World, torch: str, draw: random.Random) -> None:
    world.move(torch, "/opt/src/torch/torch")
    put(world, f"{packages_of(world)}/__editable__.torch-2.4.0.pth", "/opt/src/torch\n")


def _egg(world: World, torch: str, draw: random.Random) -> None:
    folder = f"{packages_of(world)}/torch-2.4.0-py{world.system.version}-linux-x86_64.egg"
    world.move(torch, f"{folder}/torch")
    named = draw.random() < 0.7
    if named:
        line = f"./{folder.rpartition('/')[2]}\n"
        put(world, f"{packages_of(world)}/easy-install.pth", draw.choice([line, _EASY_FIRST + line + _EASY_LAST]))


def _another_case(world: World, torch: str, draw: random.Random) -> None:
    put(
        world,
        f"{_in_front(world, draw)}/{draw.choice(['Torch.py', 'TORCH/__init__.py', 'torch2/__init__.py', 'torch.pyx', 'torch.pyi', 'torch.txt'])}",
        "def all_reduce():\n    return 'another'\n",
    )


_FORMS: dict[str, Callable[[World, str, random.Random], None]] = {
    name.strip("_").replace("_", " "): each
    for name, each in {
        "source tree": _source_tree, "torch.py": _torch_py, "torch.py behind": _torch_py_behind, "torch.pyc": _torch_pyc, "extension": _extension,
        "namespace in front": _namespace_in_front, "namespace alone": _namespace_alone, "namespace and another": _namespace_and_another,
        "__init__.pyc": _init_pyc, "no _C": _no_c, "_C of another": _c_of_another, "_C by another name": _c_by_another_name,
        "_C and another": _c_and_another, "stubs": _stubs, "_C is a package": _c_is_a_package, "_C without its entry": _c_without_its_entry,
        "_C is empty": _c_is_empty, "_C is a broken link": _c_is_a_broken_link, "no global deps": _no_global_deps, "zip": _zip,
        "not a zip": _not_a_zip, "moved away": _moved_away, "behind a link": _behind_a_link, "init behind a link": _init_behind_a_link,
        "init behind a broken link": _init_behind_a_broken_link, "init is a folder": _init_is_a_folder,
        "editable": _editable, "editable path": _editable_path, "egg": _egg, "another case": _another_case,
    }.items()
}  # fmt: skip
