"""Random start-up code, harmless and harmful, and its effect in real Pythons."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELPER = """import os, sys
from os import environ as env
import posix as p
value = "x"
def get(): return env
def call(f, *a, **k): return f(*a, **k)
def quiet(x): return len(str(x))
class Box:
    e = env
    def __init__(self, x): self.x = x
"""
"""A module that start-up code imports; it changes nothing on its own, but all of it can be abused."""

_ENVIRON = (
    ("import os", "os.environ"),
    ("import os as o", "o.environ"),
    ("from os import environ", "environ"),
    ("from os import environ as e", "e"),
    ("import os; e = os.environ", "e"),
    ("import os; e = d = os.environ", "d"),
    ("import os; e: object = os.environ", "e"),
    ("import os; (e := os.environ)", "e"),
    ("import os; e = getattr(os, 'environ')", "e"),
    ("import os; e = getattr(os, 'env' + 'iron')", "e"),
    ("import os", "vars(os)['environ']"),
    ("import os", "os.__dict__['environ']"),
    ("import os", "os.path.os.environ"),
    ("import os.path", "os.environ"),
    ("import os.path as q", "q.os.environ"),
    ("import posixpath", "posixpath.os.environ"),
    ("import logging", "logging.os.environ"),
    ("import sys", "sys.modules['os'].environ"),
    ("import sys", "sys.modules.get('os').environ"),
    ("import os", "[os][0].environ"),
    ("import os", "(lambda: os)().environ"),
    ("import os", "(lambda x=os: x)().environ"),
    ("import os", "next(iter([os.environ]))"),
    ("import os", "[m.environ for m in (os,)][0]"),
    ("import os", "{'a': os.environ}['a']"),
    ("import os", "globals()['os'].environ"),
    ("import os", "(os if os else None).environ"),
    ("import os", "(None or os).environ"),
    ("m = __import__('os')", "m.environ"),
    ("import importlib", "importlib.import_module('os').environ"),
    ("import importlib; m = importlib.import_module('o' + 's')", "m.environ"),
    ("import helper", "helper.os.environ"),
    ("import helper", "helper.env"),
    ("import helper", "helper.get()"),
    ("import helper", "helper.Box.e"),
    ("import helper, os", "helper.Box(os).x.environ"),
    ("from helper import env", "env"),
    ("from helper import *", "env"),
    ("from helper import os as z", "z.environ"),
    ("import os\nclass C: e = os.environ", "C.e"),
    ("class C:\n import os", "C.os.environ"),
    ("class C:\n from os import environ as e", "C.e"),
    ("import os\ndef f(e=os.environ): return e", "f()"),
    ("import os\ndef f(): return 1", "f.__globals__['os'].environ"),
    ("import os\ndef f():\n yield 1", "f().gi_frame.f_globals['os'].environ"),
    ("import os\ntry: 1/0\nexcept Exception as x: t = x", "t.__traceback__.tb_frame.f_globals['os'].environ"),
    ("import os, functools", "functools.reduce(getattr, ['environ'], os)"),
    ("import os, operator", "operator.attrgetter('environ')(os)"),
    ("import os, types\ndef f(x):\n match x:\n  case types.ModuleType(environ=e): return e", "f(os)"),
    ("import sys", "sys._getframe(0).f_builtins['__import__']('os').environ"),
    ("import os\nfor e in [os.environ]: pass", "e"),
    ("import os\nwhile True:\n e = os.environ\n break", "e"),
    ("import os, contextlib\nwith contextlib.nullcontext(os.environ) as e: pass", "e"),
    ("import os, dataclasses\n@dataclasses.dataclass\nclass D: e: object = None", "D(os.environ).e"),
    ("import os, collections\nN = collections.namedtuple('N', 'e')", "N(os.environ).e"),
    ("import os, typing", "typing.cast(object, os.environ)"),
    ("import os\ndef g(x): return x", "g(os).environ"),
    ("import os\ndef g(*x): return x[0]", "g(os.environ)"),
    ("import os\nclass P:\n @property\n def e(self): return os.environ", "P().e"),
    ("import os\nclass G:\n def __getattr__(self, n): return getattr(os, n)", "G().environ"),
    ("import os as sys", "sys.environ"),
    ("import os\nos2 = os", "os2.environ"),
    ("import os\nif len('a') == 1: import os as o\nelse: o = None", "o.environ"),
    ("import os, helper as os2", "os2.p and os.environ"),
    ("import helper as os", "os.os.environ"),
    ("import __main__, os", "os.environ"),
    ("import os; e = os.environ.items()", "e._mapping"),
    ("import os", "os.environ.keys()._mapping"),
    ("import os\ntry: os.nothing\nexcept AttributeError as x: m = x.obj", "m.environ"),
    ("import warnings", "warnings.catch_warnings()._module.sys.modules['os'].environ"),
    ("import os\nclass M:\n def __contains__(s, x):\n  s.e = x\n  return True\nm = M()\n'a' in os.environ in m", "m.e"),
    ("import os\nclass M:\n def take(self): return self._mapping\n", "M.take(os.environ.items())"),
    ("import os\ntry: getattr(os, 'nothing')\nexcept AttributeError as x: pass\nelse: x = None", "os.environ"),
)
_ACTIONS = (
    "{e}['{n}'] = 'v'",
    "{e}['{n}'] = 'a' + 'b'",
    "{e}['{n}'] = str(len('abc'))",
    "{e}['N' + 'CCL_NET'] = 'v'",
    "{e}.setdefault('{n}', 'v')",
    "{e}.setdefault('{s}', 'v')",
    "{e}.pop('{s}', None)",
    "{e}.pop('{s}')",
    "{e}.pop('{n}')",
    "{e}.pop('{n}', None)",
    "del {e}['{s}']",
    "{e}.update({{'{n}': 'v'}})",
    "{e}.update({n}='v')",
    "{e}.__setitem__('{n}', 'v')",
    "{e} |= {{'{n}': 'v'}}",
    "{e}['{s}'] += ':more'",
    "({e}['{n}'], b) = ('v', 2)",
    "for {e}['{n}'] in ['v']: pass",
    "[0 for {e}['{n}'] in ['v']]",
    "print({e}.setdefault('{n}', 'v'))",
    "x = {e}.pop('{s}', None)",
    "{e}._data[b'{n}'] = b'v'",
    "{e}.clear()",
    "type({e}).__setitem__({e}, '{n}', 'v')",
    "setattr({e}, 'encodekey', str)",
    "a = {e}; a['{n}'] = 'v'",
    "b = [{e}]; b[0]['{n}'] = 'v'",
    "k = {e}.get('PATH')",
    "k = '{n}' in {e}",
    "k = [x for x in {e}]",
    "k = dict({e}.items())",
    "k = {e}.copy(); k['{n}'] = 'v'",
    "k = {e}['{s}']",
    "k = {e}['{n}']",
)
_OTHERS = (
    "import os; os.putenv('{n}', 'v')",
    "import posix; posix.putenv(b'{n}', b'v')",
    "import helper; helper.p.putenv('{n}', 'v')",
    "import os; os.environb[b'{n}'] = b'v'",
    "import os; list(map(os.putenv, ['{n}'], ['v']))",
    "import os, functools; functools.partial(os.putenv, '{n}')('v')",
    "import os, helper; helper.call(os.putenv, '{n}', 'v')",
    "import os, helper; helper.call(os.environ.__setitem__, '{n}', 'v')",
    "import os\n@os.environ.update\nclass K:\n def keys(): return ['{n}']\n def __class_getitem__(c, k): return 'v'",
    "import ctypes; ctypes.CDLL(None).setenv(b'{n}', b'v', 1)",
    "import ctypes; ctypes.CDLL('libBrokenLocale.so.1')",
    "import ctypes as c; c.cdll.LoadLibrary('libBrokenLocale.so.1')",
    "from ctypes import *; CDLL('libBrokenLocale.so.1')",
    "import _ctypes; _ctypes.dlopen('libBrokenLocale.so.1', 2)",
    "import sys; sys.setdlopenflags(0x102)",
    "import sys; sys.path.insert(0, '/new')",
    "import sys; sys.path.append('/new')",
    "import sys; sys.path.insert(1, '/new')",
    "import sys; sys.path += ['/new']",
    "import sys; sys.path[:0] = ['/new']",
    "import sys; sys.path = ['/new', *sys.path]",
    "import sys; sys.path.extend(['/new'])",
    "from sys import path; path.insert(0, '/new')",
    "import sys as s; p = s.path; p.append('/new')",
    "import helper; helper.sys.path.append('/new')",
    "import site; site.addsitedir('/')",
    "import site; site.addsitedir('/', set())",
    "import sys\nclass F:\n @classmethod\n def find_spec(c, *a): return None\nsys.meta_path.insert(0, F)",
    "import sys; sys.path_hooks.append(lambda p: None)",
    "import sys; sys.path_importer_cache.clear()",
    "import sys; sys.modules['torch'] = sys",
    "import sys, types; sys.modules.setdefault('torch', types.ModuleType('torch'))",
    "import os; os.chdir('/')",
    "import builtins; builtins.open = print",
    "import builtins; builtins.__import__ = lambda *a: None",
    "__builtins__.open = print",
    "import os; os.getenv = lambda n: 'v'",
    "import os; setattr(os, 'getenv', len)",
    "import helper; helper.os.getenv = len",
    "import helper; helper.value = 'y'",
    "import sys; sys.exit(3)",
    "raise SystemExit(3)",
    "import os; os._exit(3)",
    "raise KeyboardInterrupt",
    "raise ValueError('no')",
    "import nothing_of_this_name",
    "import sys; sys.settrace(lambda *a: None)",
    "exec('import os')",
    "exec('import os' + '; os.putenv(\"{n}\", \"v\")')",
    "exec(compile('import os; os.environ[\"{n}\"] = \"v\"', 'x', 'exec'))",
    'eval(\'__import__("os").environ.update({n}="v")\')',
    "import os; eval('os.environ.__setitem__', {{'os': os}})('{n}', 'v')",
    'import os; exec(\'os.environ["{n}"] = "v"\')',
    'exec(\'import os; os.environ["{n}"] = "v"\')',
    "import base64; exec(base64.b64decode('aW1wb3J0IG9zOyBvcy5lbnZpcm9uWyJOQ0NMX05FVCJdPSJ2Ig=='))",
    "import pathlib; P = type(pathlib.Path()); P.exists = lambda s: False",
    "import re; re.compile('x')",
    "import json; json.loads('{{}}')",
    "import warnings; warnings.filterwarnings('ignore')",
    "import helper; helper.quiet(3)",
    "def f(x): return x + 1\ny = f(2)",
    "class A:\n def __init__(self): self.x = 1\na = A()",
    "x = [i * i for i in range(3)]",
    "import os; x = os.path.join('/a', os.getcwd())",
    "pass",
)
_AROUND = (
    *["{c}"] * 10,
    "if True:\n{i}",
    "if False:\n{i}",
    "if 'HOME_OF_NOBODY' in __import__('os').environ:\n{i}",
    "import os\nif os.environ.get('HOME_OF_NOBODY'):\n{i}",
    "import os\nif os.environ.get('SET') == 'old':\n{i}",
    "import os\nif not os.getenv('HOME_OF_NOBODY'):\n{i}",
    "import os\nq = os.getenv('HOME_OF_NOBODY')\nif q:\n{i}",
    "import os\nq = os.getenv('SET')\nif q == 'old':\n{i}",
    "import os\nq = os.getenv('SET')\nfor q in ():\n pass\nif q == 'old':\n{i}",
    "import os\nif (q := os.getenv('HOME_OF_NOBODY', None)):\n{i}",
    "try:\n{i}\nexcept Exception: pass",
    "try:\n{i}\nexcept BaseException: pass",
    "try: 1/0\nexcept ZeroDivisionError:\n{i}",
    "try: pass\nexcept Exception: pass\nelse:\n{i}",
    "def run():\n{i}\nrun()",
    "def run():\n{i}",
    "class K:\n{i}",
    "class K:\n def run(self):\n{ii}\nK().run()",
    "for _ in range(1):\n{i}",
    "exec({r})",
    "import sys; exec({r})",
    "with open(__file__) as f:\n{i}",
    "1/0\n{c}",
    "import nothing_of_this_name\n{c}",
    "x = 1\n{c}\ny = 2",
    "{c}\n1/0",
    "def deco(f): return f()\n@deco\ndef run():\n{i}",
)


@dataclass(frozen=True)
class Code:
    """A file that runs when Python starts: `.pth` or sitecustomize."""

    name: str
    text: str


def random_codes(seed: int, count: int) -> Iterator[Code]:
    """Yield pieces of start-up code, always the same for a seed."""
    chance = random.Random(seed)  # noqa: S311 - not a secret
    for _ in range(count):
        code = "\n".join(_piece(chance) for _ in range(chance.choice((1, 1, 1, 2, 2, 3))))
        if chance.random() < 0.5:
            lines = [f"import sys; exec({code!r})"] if "\n" in code or not code.startswith("import ") else [code]
            if chance.random() < 0.3:
                lines.insert(
                    chance.randrange(2),
                    f"import os; {chance.choice(_ACTIONS[:6]).format(e='os.environ', n='FI_PROVIDER', s='SET')}",
                )
            yield Code("zzz.pth", "\n".join(lines) + "\n")
        else:
            yield Code("sitecustomize.py", code + "\n")


def _piece(chance: random.Random) -> str:
    names = {
        "n": chance.choice(("NCCL_NET", "NCCL_NET", "LD_PRELOAD_X", "OF_NOBODY")),
        "s": chance.choice(("SET", "NCCL_SET")),
    }
    if chance.random() < 0.6:
        setup, expression = chance.choice(_ENVIRON if chance.random() < 0.6 else _ENVIRON[:4])
        joint = "\n" if "\n" in setup else "; "
        action = chance.choice(_ACTIONS).format(e=expression, **names)
        code = f"{setup}\n{action}" if action.startswith("for ") or joint == "\n" else f"{setup}{joint}{action}"
    else:
        code = chance.choice(_OTHERS).format(**names)
    around = chance.choice(_AROUND)
    inside = "\n".join(f" {line}" for line in code.split("\n"))
    twice = "\n".join(f"  {line}" for line in code.split("\n"))
    for mark, text in (("{c}", code), ("{ii}", twice), ("{i}", inside), ("{r}", repr(code))):
        around = around.replace(mark, text)
    return around


_RUNNER = r"""
import builtins, ctypes, ctypes.util, importlib, importlib.machinery, importlib.util, json, os, signal, site, sys, types, tempfile, traceback
folder = sys.argv[1]
libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p
names = ["NCCL_NET", "LD_PRELOAD_X", "FI_PROVIDER", "NCCL_SET", "SET", "OF_NOBODY"]
import re, warnings, logging, functools, operator, contextlib, dataclasses, collections, typing, pathlib, base64, posixpath
watched = [os, sys, builtins, posixpath, site, ctypes, warnings, re, logging, pathlib, type(pathlib.Path()), type(os.environ)]
skip = {"last_exc", "last_type", "last_value", "last_traceback", "ps1", "path", "meta_path", "path_hooks", "flags", "_", "sitecustomize"}
def maps():
    return sorted({l.split(None, 5)[5].strip() for l in open("/proc/self/maps") if ".so" in l and "lib-dynload" not in l})
def look():
    return {
        "environ": {n: os.environ.get(n) for n in names},
        "c": {n: v and v.decode() for n in names for v in [libc.getenv(n.encode())]},
        "path": list(map(str, sys.path)), "hooks": [len(sys.path_hooks), len(sys.meta_path), sys.getdlopenflags(), os.getcwd()],
        "maps": maps(), "torch": "torch" in sys.modules, "trace": sys.gettrace() is not None,
        "is": [id(os.environ), id(sys.modules), id(sys.path), id(sys.meta_path)],
        "attributes": [sorted((k, id(v)) for k, v in list(vars(m).items()) if k not in skip and not isinstance(v, types.ModuleType) and not k.startswith("__")) for m in watched],
        "codes": [f.__code__ is c for f, c in codes],
    }
codes = [(f, f.__code__) for f in (os.getenv, os.path.join, os.path.exists)]
def run(name, text):
    with open(os.path.join(folder, name), "w") as f: f.write(text)
    if name.endswith(".pth"):
        site.addpackage(folder, name, set())
    else:
        try: importlib.import_module("sitecustomize")
        except Exception: pass
sys.path.append(folder)
sys.dont_write_bytecode = True
def answer(name, text):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        null = os.open("/dev/null", 2); os.dup2(null, 1); os.dup2(null, 2); os.dup2(null, 0)
        try:
            run(name, text)
            after = look()
            found = {"changed": [k for k in before if before[k] != after[k]], "environ": after["environ"], "c": after["c"], "path": after["path"]}
        except BaseException as e:
            found = {"changed": ["end"]}
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    data = b""
    while part := os.read(reader, 65536): data += part
    os.close(reader); os.waitpid(pid, 0)
    try: os.unlink(os.path.join(folder, name))
    except OSError: pass
    importlib.invalidate_caches()
    return json.loads(data) if data else {"changed": ["end"]}
before = look()
for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""


ENVIRONMENT = {"SET": "old", "NCCL_SET": "old", "PATH": "/usr/bin"}
"""Environment of the process in which the code runs."""


def really(python: str, folder: Path, codes: Sequence[Code]) -> list[dict[str, Any]]:
    """Return what each piece of code changes in a real Python; each runs in a fork, as site.py would run it."""
    (folder / "helper.py").write_text(HELPER)
    lines = "\n".join(json.dumps([code.name, code.text]) for code in codes)
    done = subprocess.run(
        [python, "-S", "-B", "-c", _RUNNER, folder],
        input=lines,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [answer | {"changed": set(answer["changed"])} for answer in answers]
