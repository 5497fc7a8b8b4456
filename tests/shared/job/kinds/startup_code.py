"""Code that Python runs at its start: lines of `.pth` files, sitecustomize, usercustomize, and what those import.

Each is drawn: what it does, how that is written, and where it lies. Beside what does harm is what environments have every day.
"""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import marshal
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, runpath
from tests.shared.job.changes import NotHereError
from tests.shared.job.kinds.place import (
    TOO_NEW,
    Planted,
    home_of,
    packages_of,
    prefix_of,
    put,
    rccl_of,
    second_torch,
    stdlib_of,
)
from tests.shared.job.kinds.real_startup import REAL
from tests.shared.job.world import ROCM, fabric_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.shared.job.world import World

SHIM = "/opt/shim/libshim.so"
NEWER = "/opt/newer/lib/librccl.so.1"
_HOOK = """\
import sys
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            return PathFinder.find_spec(name, [{folder!r}])
sys.meta_path.insert(0, Finder)
"""


@dataclass(frozen=True)
class Code:
    """A few lines of Python."""

    what: str
    lines: str
    prepare: Callable[[World], object] | None = None
    is_open: bool = False
    """Whether an open question is right even where no harm is done."""


def shim(world: World) -> None:
    library(world.new(SHIM), source='const char *ncclCommInitRank(void) { return "shim"; }')


PLAIN = "/opt/plain/libfabric.so.1"


def plain_libfabric(world: World) -> None:
    """Make one without cxi; it has the name that the plugin asks for."""
    fabric_of(world.new(PLAIN), None)


def newer_rccl(world: World) -> None:
    """Make one that is too new for the plugin."""
    rccl_of(world, NEWER, TOO_NEW, *runpath(ROCM))


def _sets(name: str, value: str, prepare: Callable[[World], object] | None = None) -> list[Code]:
    ways = {
        "item": f"import os\nos.environ[{name!r}] = {value!r}\n",
        "setdefault": f"import os\nos.environ.setdefault({name!r}, {value!r})\n",
        "update": f"import os\nos.environ.update({{{name!r}: {value!r}}})\n",
        "update-keyword": f"import os\nos.environ.update({name}={value!r})\n",
        "putenv": f"import os\nos.putenv({name!r}, {value!r})\n",
        "from-os": f"from os import environ\nenviron[{name!r}] = {value!r}\n",
        "as": f"import os as _o\n_o.environ[{name!r}] = {value!r}\n",
        "bytes": f"import os\nos.environb[{name.encode()!r}] = {value.encode()!r}\n",
        "or-equals": f"import os\nos.environ |= {{{name!r}: {value!r}}}\n",
        "loop": f"import os\nfor k, v in (({name!r}, {value!r}),):\n    os.environ[k] = v\n",
        "alias": f"import os\ne = os.environ\ne[{name!r}] = {value!r}\n",
        "unset-first": f"import os\nif {name!r} not in os.environ:\n    os.environ[{name!r}] = {value!r}\n",
        "posix": f"import posix\nposix.putenv({name.encode()!r}, {value.encode()!r})\n",
        "setenv-of-c": f"import ctypes\nctypes.CDLL(None).setenv({name.encode()!r}, {value.encode()!r}, 1)\n",
        "computed": f"import os\nos.environ['N' + {name[1:]!r}] = {value!r}\n"
        if name[0] == "N"
        else f"import os\nos.environ[''.join({[*name]!r})] = {value!r}\n",
    }
    return [Code(f"sets {name} ({way})", text, prepare) for way, text in ways.items()]


_HARMLESS = [
    Code("the plugin's own name", "import os\nos.environ['NCCL_NET'] = 'AWS Libfabric'\n", is_open=True),
    Code("another environ", "import os\nos.environ = {'NCCL_NET': 'Socket'}\n", is_open=True),
    Code("a path for children", "import os\nos.environ['PYTHONPATH'] = '/opt/second'\nos.environ['LD_PRELOAD'] = '/opt/gone.so'\n", is_open=True),
    Code("nothing", "import os, sys\n"),
    Code("reads", "import os\nDEBUG = os.environ.get('MY_DEBUG', '0') == '1'\n"),
    Code("warnings", "import warnings\nwarnings.filterwarnings('ignore', category=DeprecationWarning)\n"),
    Code("threads", "import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\n"),
    Code("log level", "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"),
    Code("cache folder", "import os\nos.environ['HF_HOME'] = '/scratch/hf'\nos.environ['MIOPEN_USER_DB_PATH'] = '/tmp/miopen'\n"),
    Code("cxi", "import os\nos.environ['FI_PROVIDER'] = 'cxi'\n"),
    Code("debug of RCCL", "import os\nos.environ.setdefault('NCCL_DEBUG', 'WARN')\n"),
    Code("library path", "import os\nos.environ['LD_LIBRARY_PATH'] = '/opt/nothing'\n"),
    Code("a folder behind", "import sys\nsys.path.append('/opt/site-extra')\n"),
    Code("an empty folder in front", "import sys\nsys.path.insert(0, '/opt/site-extra')\n"),
    Code("no bytecode", "import sys\nsys.dont_write_bytecode = True\n"),
    Code("recursion", "import sys\nsys.setrecursionlimit(5000)\n"),
    Code("a function that is not called", "import os\ndef setup():\n    os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("a class that is not made", "import os\nclass Setup:\n    def __init__(self):\n        os.environ['NCCL_NET'] = 'Socket'\n", is_open=True),
    Code("never true", "import os\nif False:\n    os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("for an older Python", "import os, sys\nif sys.version_info < (3, 6):\n    os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("for another system", "import os, sys\nif sys.platform == 'win32':\n    os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("where a variable is set", "import os\nif os.environ.get('MY_SOCKETS'):\n    os.environ['NCCL_NET'] = 'Socket'\n", is_open=True),
    Code("a text", '"""os.environ["NCCL_NET"] = "Socket"."""\nDOC = "os.environ[\'NCCL_NET\'] = \'Socket\'"\n'),
    Code("a comment", "# import os; os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("another dictionary", "environ = {}\nenviron['NCCL_NET'] = 'Socket'\n"),
    Code("a copy", "import os\ncopied = dict(os.environ)\ncopied['NCCL_NET'] = 'Socket'\n"),
    Code("set and taken back", "import os\nos.environ['NCCL_NET'] = 'Socket'\ndel os.environ['NCCL_NET']\n", is_open=True),
    Code("a variable is taken away", "import os\nos.environ.pop('MY_NOTHING', None)\n"),
    Code("what is not there", "try:\n    import apport_python_hook\nexcept ImportError:\n    pass\nelse:\n    apport_python_hook.install()\n"),
    Code("what is not there, else", "import os\ntry:\n    import not_here_at_all\nexcept ImportError:\n    os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("an except that is not taken", "import os\ntry:\n    import re\nexcept ImportError:\n    os.environ['NCCL_NET'] = 'Socket'\n"),
    Code("opens the C library", "import ctypes\nctypes.CDLL(None)\n", is_open=True),
]  # fmt: skip


def _codes(world: World) -> list[Code]:
    """Return what may do harm in some image, about which a question is right in every one, and what does none."""
    return [*(replace(each, is_open=True) for each in _harmful(world)), *_HARMLESS]


def _harmful(world: World) -> list[Code]:
    other = world.folder_of("/opt/second")
    return [
        *_sets("NCCL_NET", "Socket"),
        *_sets("NCCL_NET_PLUGIN", "none"),
        *_sets("FI_PROVIDER", "tcp"),
        *_sets("NCCL_NET_PLUGIN", "ofi-that-is-gone"),
        *_sets("VLLM_NCCL_SO_PATH", NEWER, newer_rccl),
        Code("opens a shim for all", f"import ctypes\nctypes.CDLL({SHIM!r}, mode=ctypes.RTLD_GLOBAL)\n", shim),
        Code("opens a shim for all (os)", f"import ctypes, os\nctypes.CDLL({SHIM!r}, os.RTLD_GLOBAL)\n", shim),
        Code("opens a shim for itself", f"import ctypes\nctypes.CDLL({SHIM!r})\n", shim, is_open=True),
        Code("opens for all from now on", f"import sys, ctypes, os\nsys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)\nctypes.CDLL({SHIM!r})\n", shim, is_open=True),
        Code("opens another RCCL", f"import ctypes\nctypes.CDLL({NEWER!r})\n", newer_rccl, is_open=True),
        Code("opens the RCCL by name", "import ctypes\ntry:\n    ctypes.CDLL('librccl.so.1')\nexcept OSError:\n    pass\n", is_open=True),
        Code("another torch in front", f"import sys\nsys.path.insert(0, {other!r})\n", second_torch),
        Code("another torch in front (slice)", f"import sys\nsys.path[:0] = [{other!r}]\n", second_torch),
        Code("another torch in front (list)", f"import sys\nsys.path = [{other!r}] + sys.path\n", second_torch),
        Code("another torch behind", f"import sys\nsys.path.append({other!r})\n", second_torch),
        Code("another torch behind (site)", f"import site\nsite.addsitedir({other!r})\n", second_torch),
        Code("another torch behind (+=)", f"import sys\nsys.path += [{other!r}]\n", second_torch),
        Code("a hook for another torch", _HOOK.format(name="torch", folder=other), second_torch),
        Code("a hook for nothing", _HOOK.format(name="nothing_of_this", folder=other), second_torch, is_open=True),
        Code("torch is another module", "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"),
        Code("takes the path away", "import sys\nsys.path.clear()\n"),
        Code("takes site-packages away", "import sys\nsys.path[:] = [each for each in sys.path if 'packages' not in each]\n"),
        Code("imports torch in another way", f"import sys\nsys.path.insert(0, {other!r})\nimport torch\nsys.path.pop(0)\n", second_torch),
        Code("starts again with sockets", "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n    os.environ['NCCL_NET'] = 'Socket'\n    os.execv(sys.executable, sys.orig_argv)\n"),
        Code("starts again as it was", "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, sys.orig_argv)\n", is_open=True),
        Code("ends", "import sys\nsys.exit(0)\n"),
        Code("ends at once", "import os\nos._exit(0)\n"),
        Code("a builtin is another", "import builtins\nreal = builtins.__import__\ndef f(name, *a, **k):\n    if name == 'torch':\n        raise ImportError('no')\n    return real(name, *a, **k)\nbuiltins.__import__ = f\n"),
        Code("runs a text", "exec('import os; os.environ[\"NCCL_NET\"] = \"Socket\"')\n"),
        Code("runs a coded text", "import codecs\nexec(codecs.decode('vzcbeg bf; bf.raiveba[\"APPY_ARG\"] = \"Fbpxrg\"', 'rot13') if False else 'import os; os.environ[\"NCCL_\" + \"NET\"] = \"Socket\"')\n"),
        Code("by getattr", "getattr(__import__('o' + 's'), 'envi' + 'ron')['NCCL_NET'] = 'Socket'\n"),
        Code("raises", "raise RuntimeError('as it was')\n", is_open=True),
        Code("wrong syntax", "this is not Python\n", is_open=True),
        Code("another libfabric", f"import ctypes\nctypes.CDLL({PLAIN!r})\n", plain_libfabric),
        Code("reads a text from a file", "exec(open('/opt/own/text.py').read())\n", lambda world: put(world, "/opt/own/text.py", "import os\nos.environ['NCCL_NET'] = 'Socket'\n")),
        Code("reads variables from a file", "import os\nfor line in open('/opt/own/env'):\n    k, _, v = line.strip().partition('=')\n    os.environ[k] = v\n", lambda world: put(world, "/opt/own/env", "NCCL_NET=Socket\n")),
        Code("a folder with a .pth", "import site\nsite.addsitedir('/opt/own/more')\n", lambda world: put(world, "/opt/own/more/x.pth", "import os; os.environ['NCCL_NET'] = 'Socket'\n")),
        Code("a folder with a module", "import sys\nsys.path.insert(0, '/opt/own/more')\nimport own_more\n", lambda world: put(world, "/opt/own/more/own_more.py", "import os\nos.environ['NCCL_NET'] = 'Socket'\n")),
        Code("where a folder is there", "import os\nif os.path.exists('/opt/plugin'):\n    os.environ['NCCL_NET'] = 'Socket'\n", is_open=True),
        Code("where a folder is not there", "import os\nif os.path.isdir('/opt/gone'):\n    os.environ['NCCL_NET'] = 'Socket'\n", is_open=True),
        Code("in a thread", "import threading, os\nt = threading.Thread(target=lambda: os.environ.__setitem__('NCCL_NET', 'Socket'))\nt.start()\nt.join()\n"),
        Code("by setattr", "import os\nsetattr(os, 'x', os.environ.__setitem__('NCCL_NET', 'Socket'))\n"),
        Code("by map", "import os\nlist(map(os.putenv, ['NCCL_NET'], ['Socket']))\n"),
        Code("in a comprehension", "import os\n[os.environ.update(NCCL_NET=v) for v in ['Socket']]\n"),
        Code("in a decorator", "import os\ndef run(f):\n    f()\n    return f\n@run\ndef setup():\n    os.environ['NCCL_NET'] = 'Socket'\n"),
        Code("in a default", "import os\ndef setup(x=os.putenv('NCCL_NET', 'Socket')):\n    pass\n"),
        Code("by an operator", "import os\nos.environ.get('MY') or os.environ.__setitem__('NCCL_NET', 'Socket')\n"),
        Code("in a metaclass", "import os\nclass M(type):\n    def __init__(cls, *a):\n        os.environ['NCCL_NET'] = 'Socket'\nclass C(metaclass=M):\n    pass\n"),
        Code("a module of its own name", "import os, sys\nmod = sys.modules['os']\nmod.environ['NCCL_NET'] = 'Socket'\n"),
        Code("by vars", "import os\nvars(os)['environ']['NCCL_NET'] = 'Socket'\n"),
        Code("by a walrus", "import os\n(e := os.environ)['NCCL_NET'] = 'Socket'\n"),
        Code("by unpacking", "import os\nos.environ['NCCL_NET'], x = 'Socket', 1\n"),
        Code("for a key of a list", "import os\nfor os.environ['NCCL_NET'] in ['Socket']:\n    pass\n"),
        Code("in a match", "import os\nmatch 1:\n    case 1:\n        os.environ['NCCL_NET'] = 'Socket'\n"),
        Code("as it is or sockets", "import os\nos.environ['NCCL_NET'] = os.environ.get('NCCL_NET', 'Socket')\n"),
        Code("with a name in a constant", "import os\nKEY = 'NCCL_NET'\nos.environ[KEY] = 'Socket'\n"),
        Code("from a dictionary", "import os\nDEFAULTS = {'NCCL_NET': 'Socket'}\nfor k in DEFAULTS:\n    os.environ.setdefault(k, DEFAULTS[k])\n"),
        Code("from a dictionary at once", "import os\nDEFAULTS = {'NCCL_NET': 'Socket'}\nos.environ.update(DEFAULTS)\n"),
        Code("from a harmless dictionary", "import os\nDEFAULTS = {'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'}\nos.environ.update(DEFAULTS)\n", is_open=True),
        Code("CDLL is another", "import ctypes\nreal = ctypes.CDLL\nclass CDLL(real):\n    def __init__(self, name, *a, **k):\n        raise OSError('no')\nctypes.CDLL = CDLL\n"),
        Code("a hook for paths", "import sys\ndef hook(path):\n    raise ImportError\nsys.path_hooks.insert(0, hook)\n", is_open=True),
        Code("takes the hooks away", "import sys\nsys.meta_path.clear()\n"),
        Code("takes all variables away", "import os\nos.environ.clear()\n", is_open=True),
        Code("heals", "import os\nos.environ.pop('NCCL_NET', None)\n", lambda world: world.set(NCCL_NET="Socket"), is_open=True),
        Code("heals (del)", "import os\nif 'NCCL_NET' in os.environ:\n    del os.environ['NCCL_NET']\n", lambda world: world.set(NCCL_NET="Socket"), is_open=True),
        Code("heals (item)", "import os\nos.environ['FI_PROVIDER'] = 'cxi'\n", lambda world: world.set(FI_PROVIDER="tcp"), is_open=True),
        Code("setdefault of what is set", "import os\nos.environ.setdefault('NCCL_NET', 'Socket')\n", lambda world: world.set(NCCL_NET="AWS Libfabric"), is_open=True),
    ]  # fmt: skip


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


_DRESSES: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    "in a try": lambda text: f"try:\n{_indented(text)}except Exception:\n    pass\n",
    "in a function": lambda text: f"def main():\n{_indented(text)}\nmain()\n",
    "in a branch": lambda text: f"import sys\nif sys.version_info >= (3, 8):\n{_indented(text)}",
    "in a class": lambda text: f"class _:\n{_indented(text)}",
    "with a head": lambda text: f'"""Set up."""\n\nfrom __future__ import annotations\n\n{text}',
    "in a with": lambda text: f"import contextlib\nwith contextlib.suppress(Exception):\n{_indented(text)}",
    "in a finally": lambda text: f"try:\n    pass\nfinally:\n{_indented(text)}",
    "in a lambda": lambda text: f"(lambda: exec({text!r}))()\n",
}
_PLAIN = {"", "in a try", "in a branch", "with a head", "in a finally"}


def startup_code(world: World, draw: random.Random) -> Planted:
    if draw.random() < 0.18:
        return _real(world, draw)
    code = draw.choice(_codes(world))
    if code.what.startswith("sets ") and draw.random() < 0.5:  # there are many ways to set a variable
        code = draw.choice([each for each in _codes(world) if not each.what.startswith("sets ")])
    dress = draw.choice([*_DRESSES]) if draw.random() < 0.5 else ""
    text = _DRESSES[dress](code.lines)
    if code.prepare is not None:
        code.prepare(world)
    place = draw.choice([*_PLACES])
    path = _PLACES[place](world, text, draw)
    is_open = code.is_open or dress not in _PLAIN or place == "bytecode"
    note = f"{place}: {code.what}" + (f", {dress}" if dress else "")
    return Planted(note, path if is_open else None, path)


# -- where it lies; each returns the file that a question about it must name --


def _pth_line(world: World, text: str, draw: random.Random) -> str:
    """One line, as a `.pth` has it."""
    lines = text.splitlines()
    if any(
        line.startswith((" ", "def ", "class ", "if ", "for ", "try:", "@", "with ", "#", '"', "'")) for line in lines
    ):
        line = f"import sys; exec({text!r})"
    else:
        line = "; ".join(lines)
        if not line.startswith("import "):
            line = f"import sys; {line}"
    name = draw.choice(["aaa.pth", "zzz.pth", "_own.pth", "own-nspkg.pth", "distutils-precedence.pth"])
    around = draw.choice(["{}\n", "# a comment\n\n{}\n", "/opt/nothing\n{}\n", "{}", "{}\r\n"])
    return put(world, f"{packages_of(world)}/{name}", around.format(line))


def _pth_imports(world: World, text: str, draw: random.Random) -> str:
    folder = packages_of(world)
    form = draw.choice(["module", "package", "submodule"])
    path = {"module": "own_setup.py", "package": "own_setup/__init__.py", "submodule": "own_setup/sub.py"}[form]
    put(world, f"{folder}/own.pth", f"import own_setup{'.sub' if form == 'submodule' else ''}\n")
    if form == "submodule":
        put(world, f"{folder}/own_setup/__init__.py", "")
    put(world, f"{folder}/{path}", text)
    return f"{folder}/own.pth"


def _pth_imports_twice(world: World, text: str, draw: random.Random) -> str:
    folder = packages_of(world)
    put(world, f"{folder}/own.pth", "import own_first\n")
    word = draw.choice(["import own_second\n", "from own_second import *\n", "import importlib\nimportlib.import_module('own_second')\n", "__import__('own_second')\n"])  # fmt: skip
    put(world, f"{folder}/own_first.py", word)
    put(world, f"{folder}/own_second.py", text)
    return f"{folder}/own.pth"


def _sitecustomize(world: World, text: str, draw: random.Random) -> str:
    folder = draw.choice([packages_of(world), stdlib_of(world)])
    path = f"{folder}/sitecustomize.py"
    if world.at(f"{stdlib_of(world)}/sitecustomize.py").exists():
        raise NotHereError
    return put(world, path, text)


def _usercustomize(world: World, text: str, draw: random.Random) -> str:
    path = put(world, f"{packages_of(world)}/usercustomize.py", text)
    if draw.random() < 0.3:
        world.set(PYTHONNOUSERSITE=draw.choice(["1", "true", ""]))
    return path


def _by_pythonpath(world: World, text: str, draw: random.Random) -> str:
    world.set(PYTHONPATH="/opt/own/path")
    name = draw.choice(["sitecustomize.py", "usercustomize.py", "sitecustomize/__init__.py"])
    return put(world, f"/opt/own/path/{name}", text)


def _in_user_site(world: World, text: str, draw: random.Random) -> str:
    world.set(PYTHONUSERBASE="/opt/userbase")
    folder = f"/opt/userbase/lib/python{world.system.version}/site-packages"
    if draw.random() < 0.5:
        return put(world, f"{folder}/usercustomize.py", text)
    put(world, f"{folder}/own.pth", "import own_setup\n")
    return put(world, f"{folder}/own_setup.py", text)


def _pth_of_pythonpath(world: World, text: str, draw: random.Random) -> str:
    """Such a folder is not a site folder."""
    world.set(PYTHONPATH="/opt/own/path")
    return put(world, "/opt/own/path/own.pth", f"import sys; exec({text!r})\n")


def _bytecode(world: World, text: str, draw: random.Random) -> str:
    """Without a source."""
    try:
        code = compile(text, "own", "exec")
    except SyntaxError as error:
        raise NotHereError from error
    if world.system.version != f"{sys.version_info[0]}.{sys.version_info[1]}":
        raise NotHereError
    data = bootstrap.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
    return put(world, f"{packages_of(world)}/{draw.choice(['sitecustomize', 'usercustomize'])}.pyc", data)


def _nowhere(world: World, text: str, draw: random.Random) -> str:
    """Where Python does not look, or not for that."""
    version = world.system.version
    torch = world.package or packages_of(world)
    place = draw.choice([
        f"{stdlib_of(world)}/own.pth", f"{packages_of(world)}/own.pth.disabled", f"{packages_of(world)}/sub/own.pth",
        f"{torch}/sitecustomize.py", f"{packages_of(world)}/sitecustomize.txt", "/opt/sitecustomize.py",
        f"/opt/other/lib/python{version}/site-packages/sitecustomize.py", f"{home_of(world)}/lib/python2.7/sitecustomize.py",
        f"{packages_of(world)}/own_setup.py", f"{packages_of(world)}/sitecustomize", f"{packages_of(world)}/own.PTH",
        f"{packages_of(world)}/sitecustomize.cpython-39.pyc", f"{packages_of(world)}/__pycache__/sitecustomize.{sys.implementation.cache_tag}.pyc",
    ])  # fmt: skip
    if prefix_of(world) != home_of(world) and draw.random() < 0.4:
        place = f"{world.folder_of(home_of(world))}/own.pth"  # of the Python that a virtual environment does not see
    line = f"import sys; exec({text!r})\n" if ".pth" in place.lower() else text
    return put(world, place, line)


_PLACES = {
    "line of a .pth": _pth_line,
    "module of a .pth": _pth_imports,
    "module of a module of a .pth": _pth_imports_twice,
    "sitecustomize": _sitecustomize,
    "usercustomize": _usercustomize,
    "PYTHONPATH": _by_pythonpath,
    "user site": _in_user_site,
    ".pth of PYTHONPATH": _pth_of_pythonpath,
    "bytecode": _bytecode,
    "not run": _nowhere,
}


def _real(world: World, draw: random.Random) -> Planted:
    """As packages install it; one alone, or several."""
    names = draw.sample([*REAL], draw.choice([1, 1, 2, 3]))
    for name in names:
        for path, text in REAL[name].items():
            put(world, f"{packages_of(world)}/{path}", text)
    return Planted(f"real: {', '.join(sorted(names))}")
