"""Small roots that contain a real Python, generated from a seed, and what that Python reports about its start there.

The Python runs in a chroot: as nobody if the tests run as root, otherwise as the same user in a user namespace. So that
both give the same result, a permission that others lack on a file is also taken from its owner.
"""

from __future__ import annotations

import ast
import ctypes
import os
import random
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

_NOBODY = 65534
_LINES = (  # noqa: SIM905 - a list of them would be 26 lines
    "/src|/src2|/opt/more|./egg|../egg|egg.egg|/missing|# /opt/more||   | /src|/src  |/src/|torch|/src.zip|code|code|code|gone"
    "|site|insert|append|\t/src2|import|importx /src|/opt/more/../src2|/src\f/src2|/src2\u2028/opt/more|/opt/more\r/src"
).split("|")
"""Lines of `.pth` files; some single words are replaced by generated code or files."""
_CODE = {
    "site": ("import site; site.addsitedir('/opt/more')", "import os, site; site.addsitedir('/opt/more')"),
    "insert": ("import sys; sys.path.insert(0, '/src2')", "import sys; sys.path.insert(0, '/nowhere')"),
    "append": ("import sys; sys.path.append('/src')", "import sys; sys.path.append('/opt/more')"),
}
"""Code that replaces such a word, and changes sys.path."""
_LOCALE = Path("/usr/lib/locale/C.utf8")
_NEW_USER = 0x10000000
NAMES = ("torch", "torch._C", "torch.lib", "vllm")
_FILES = """
import sys, traceback, locale, warnings, tokenize, collections.abc, os, site, encodings.utf_8, encodings.latin_1, encodings.ascii, encodings.cp437, encodings.utf_8_sig
try: exec('1 +')
except SyntaxError as error: traceback.format_exception(type(error), error, error.__traceback__)
print(repr([module.__file__ for module in sys.modules.values() if getattr(module, '__file__', '').endswith('.py')]))
"""
_ASK = """
import sys
if sys.path and sys.path[0] == '': del sys.path[0]
def look(name):
    path = None
    for count in range(1, name.count('.') + 2):
        part = '.'.join(name.split('.')[:count])
        for finder in sys.meta_path:
            spec = finder.find_spec(part, path)
            if spec is not None: break
        if spec is None: return None
        path = spec.submodule_search_locations
        if path is None and part != name: return None
        sys.modules[part] = type(sys)(part)
        sys.modules[part].__path__ = path
    path = list(path or ())
    for part in [part for part in sys.modules if part.partition('.')[0] in ('torch', 'vllm')]: del sys.modules[part]
    try:
        loads = spec.loader is None or type(spec.loader).__name__ in ('_NamespaceLoader', 'NamespaceLoader')
        if not loads and hasattr(spec.loader, 'get_code'):
            if type(spec.loader).__name__ == 'ExtensionFileLoader':
                open(spec.origin, 'rb').close()
            else:
                spec.loader.get_code(name)
            loads = True
    except OSError:
        loads = False
    except Exception:
        loads = True
    loader = type(spec.loader).__name__
    if spec.loader is None or loader.endswith('NamespaceLoader'):
        return (None, path, '', True)
    return (spec.origin, path, loader, loads)
print(repr([sys.path, [look(name) for name in NAMES], getattr(sys, 'ran', [])]))
"""


@dataclass(frozen=True)
class Kit:
    """A Python of this machine, as files to be hard-linked into trees."""

    name: str
    folder: Path
    version: tuple[int, int]
    prefix: str
    tag: str
    is_debian: bool

    @property
    def library(self) -> str:
        return f"python{self.version[0]}.{self.version[1]}"


def kit_of(python: str, folder: Path) -> Kit:
    """Copy a Python into a folder, with its libraries and the standard modules that it imports at start."""
    frozen = ["-X", "frozen_modules=off"]
    ask = "import sys, sysconfig; print(repr((sys.version_info[:2], sysconfig.get_path('stdlib'), sysconfig.get_config_var('SOABI'), sys.base_prefix)))"
    version, stdlib, tag, _ = ast.literal_eval(_output([python, "-Ic", ask]))
    options = frozen if version >= (3, 11) else []
    files = ast.literal_eval(_output([python, "-I", *options, "-c", _FILES]))
    program = Path(python).resolve()
    (folder / "stdlib").mkdir(parents=True)
    shutil.copy(program, folder / "python")
    found = {Path(path) for path in files if path.startswith(f"{stdlib}/")}
    packages = {file.parent for file in found if file.name == "__init__.py"}
    for file in found | {more for package in packages for more in package.glob("a*.py")}:
        target = folder / "stdlib" / file.relative_to(stdlib)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    subprocess.run([python, "-m", "compileall", "-q", folder / "stdlib"], check=True)
    (folder / "libraries").mkdir()
    for path in re.findall(r"(/\S+) \(0x", _output(["ldd", program])):
        shutil.copy(path, folder / "libraries")
    if _LOCALE.is_dir():
        shutil.copytree(_LOCALE, folder / "C.utf8")
    strings = b"".join(file.read_bytes() for file in (folder / "python", *(folder / "libraries").glob("libpython*")))
    prefix = re.search(rb"\0(/[^\0]+)\0(?:(?:lib/)?python3\.\d+|EXEC_PREFIX)\0", strings)
    text = (folder / "stdlib/site.py").read_text()
    return Kit(folder.name, folder, version, prefix[1].decode() if prefix else "", tag, "dist-packages" in text)


def _output(argv: list[str | Path]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}).stdout


@dataclass
class Tree:
    """A root, and how its Python is started."""

    root: Path
    program: str
    environment: dict[str, str]
    options: list[str] = field(default_factory=list)
    closed: list[Path] = field(default_factory=list)
    """Files and folders that the Python may not read or enter."""

    def remove(self) -> None:
        for path in reversed(self.closed):
            if not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(self.root)


class Maker:
    """A generator of trees with one kit."""

    def __init__(self, kit: Kit, place: Path) -> None:
        self.kit, self.place = kit, place

    def tree(self, seed: int) -> Tree:
        return _Making(self.kit, self.place / str(seed), random.Random(f"{self.kit.name} {seed}")).made()  # noqa: S311


class _Making:
    def __init__(self, kit: Kit, root: Path, chance: random.Random) -> None:
        self.kit, self.root, self.chance = kit, root, chance
        self.environment: dict[str, str] = {}
        self.lib = "lib"
        self.sites: list[str] = []
        self.marks = 0
        self.paths: list[Path] = []

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def maybe(self, likely: float) -> bool:
        return self.chance.random() < likely

    def folder(self, path: str) -> Path:
        made = self.at(path)
        made.mkdir(parents=True, exist_ok=True)
        return made

    def write(self, path: str, data: str | bytes = "") -> Path:
        file = self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        self.paths.append(file)
        return file

    def link(self, path: str, target: str) -> None:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() and not place.is_symlink():
            place.symlink_to(target)

    def copy_tree(self, source: Path, target: str, *, but: str = "") -> None:
        for folder, _, names in os.walk(source):
            here = self.folder(f"{target}/{Path(folder).relative_to(source)}")
            for name in names:
                if name != but:
                    os.link(Path(folder, name), here / name)

    def made(self) -> Tree:
        kit, chance = self.kit, self.chance
        self.root.mkdir(parents=True)
        self.folder("/cwd")
        self.copy_tree(kit.folder / "libraries", "/lib/x86_64-linux-gnu")
        if (kit.folder / "C.utf8").is_dir():
            self.copy_tree(kit.folder / "C.utf8", "/usr/lib/locale/C.utf8")
        self.folder("/lib64")
        loader = next(self.at("/lib/x86_64-linux-gnu").glob("ld-linux*"))
        os.link(loader, self.at("/lib64") / loader.name)
        base = chance.choice([kit.prefix, kit.prefix, "/usr", "/usr/local", "/opt/py", "/opt/a b"])
        if kit.version >= (3, 9) and not kit.is_debian and self.maybe(0.2):
            self.lib = "lib64"
            self.environment["PYTHONPLATLIBDIR"] = "lib64"
        programs = self.base(base)
        options: list[str] = []
        if self.maybe(0.3) and self.at(f"{base}/{self.lib}/{kit.library}/os.py").exists():
            options = self.flavour(base)
        if self.maybe(0.5):
            programs += self.venv("/opt/venv", base)
            if self.maybe(0.15):
                programs += self.venv("/opt/inner", "/opt/venv")
        if self.maybe(0.1):
            self.link("/usr/bin/other", chance.choice(programs))
            programs.append("/usr/bin/other")
        if base == "/usr" and self.maybe(0.3):
            self.link("/bin", "usr/bin")
            programs.append(f"/bin/{Path(programs[0]).name}")
        self.variables(base)
        self.fill()
        program = chance.choice(programs)
        if self.maybe(0.02):
            self.write(
                f"{program}._pth", f"{base}/{self.lib}/{kit.library}\n/src # x\n" + chance.choice(["", "import site\n"])
            )
        closed = self.close() if self.maybe(0.3) and not options else []
        return Tree(self.root, program, self.environment, options, closed)

    def base(self, base: str) -> list[str]:
        """Add a Python below a prefix; return the paths of its programs."""
        kit, chance = self.kit, self.chance
        full = kit.library
        stdlib = f"{base}/{self.lib}/{full}"
        self.copy_tree(kit.folder / "stdlib", stdlib, but="os.py" if self.maybe(0.04) else "")
        if not self.at(f"{stdlib}/os.py").exists() and self.maybe(0.5):
            self.write(f"{stdlib}/os.pyc", next((kit.folder / "stdlib/__pycache__").glob("os.*.pyc")).read_bytes())
        self.folder(f"{stdlib}/lib-dynload")
        if self.maybe(0.04):
            self.zip(f"{base}/{self.lib}/{full.replace('.', '')}.zip")
        if self.maybe(0.1):
            # a second one in the root folder
            self.folder(f"/{self.lib}/{full}/lib-dynload")
        names = [full, "python3", "python"]
        real = chance.choice(names)
        bin_folder = self.folder(f"{base}/bin")
        os.link(kit.folder / "python", bin_folder / real)
        for name in names:
            self.link(f"{base}/bin/{name}", chance.choice([real, f"{base}/bin/{real}", f"../bin/{real}"]))
        self.sites += [f"{base}/{lib}/{full}/site-packages" for lib in ("lib", "lib64")]
        self.sites += [
            f"{base}/lib/{full}/dist-packages",
            f"{base}/lib/python3/dist-packages",
            f"{base}/local/lib/{full}/dist-packages",
        ]
        self.sites += [f"/usr/local/{lib}/{full}/site-packages" for lib in ("lib", "lib64")]
        if self.maybe(0.2) and not self.at(f"{base}/lib64").exists():
            self.link(f"{base}/lib64", "lib")
        return [f"{base}/bin/{name}" for name in names]

    def flavour(self, base: str) -> list[str]:
        """Patch site.py as a distribution does; return the options to run it instead of the frozen one (since 3.11)."""
        kit = self.kit
        site = self.at(f"{base}/{self.lib}/{kit.library}/site.py")
        text = site.read_text()
        if self.maybe(0.5):
            text = _fedora(text)
        if not kit.is_debian and self.maybe(0.6):
            text = _debian(text, by_variable=self.maybe(0.5))
        site.unlink()
        site.write_text(text)
        return ["-X", "frozen_modules=off"] if kit.version >= (3, 11) else []

    def venv(self, place: str, base: str) -> list[str]:
        kit, chance = self.kit, self.chance
        full = kit.library
        self.folder(f"{place}/bin")
        names = ["python", "python3", full]
        if self.maybe(0.7):
            for name in names:
                self.link(
                    f"{place}/bin/{name}",
                    f"{base}/bin/{chance.choice(names)}" if self.maybe(0.8) or name == full else full,
                )
        else:
            for name in names:
                os.link(kit.folder / "python", self.at(f"{place}/bin/{name}"))
        home = chance.choice(
            [
                *[f"{base}/bin"] * 8,
                f"{base}/bin/",
                f"{base}",
                "/missing/bin",
                f"{base}/../{base.rpartition('/')[2]}/bin",
                f"{base}/bin/python3",
            ]
        )
        keys = ["home = "] if kit.version < (3, 11) else ["home=", "Home = ", "home  =  ", " home = ", "xhome = "]
        key = chance.choice(["home = ", "home = ", *keys])
        lines = [f"{key}{home}"]
        if self.maybe(0.8):
            value = chance.choice(["true", "false", "TRUE", "yes", "False", "true "])
            lines.append(f"{chance.choice(['include-system-site-packages', 'Include-System-Site-Packages'])} = {value}")
        lines += chance.choice([[], ["version = 3.1.2"], ["# home = /nowhere", "no equals"]])
        chance.shuffle(lines)
        end = chance.choice(["\n", "\n", "\n", *([] if kit.version < (3, 11) else ["\r\n", "\r", "\v"])])
        text = end.join([*lines, ""])
        if self.maybe(0.01):
            text += "\udcff"
        for folder in ("", "/bin") if self.maybe(0.05) else ("",):
            self.write(f"{place}{folder}/pyvenv.cfg", text.encode("utf-8", "surrogateescape"))
        self.sites += [f"{place}/{lib}/{full}/site-packages" for lib in ("lib", "lib64")]
        self.sites.append(f"{place}/lib/{full}/dist-packages")
        self.folder(f"{place}/lib/{full}/site-packages")
        if self.maybe(0.6):
            self.link(f"{place}/lib64", "lib")
        return [f"{place}/bin/{name}" for name in names] * 2

    def variables(self, base: str) -> None:
        chance, environment = self.chance, self.environment
        self.folder("/src")
        if self.maybe(0.4):
            own = [
                "/src",
                "/src2",
                "/src/../src2",
                "/missing",
                "",
                "rel",
                "/src.zip",
                "/src.zip/sub",
                "/src/torch.py",
                "/src/",
                "/src",
                chance.choice(self.sites),
            ]
            environment["PYTHONPATH"] = ":".join(chance.choices(own, k=chance.randint(1, 5)))
        if self.maybe(0.06):
            environment["PYTHONHOME"] = chance.choice([base, base, f"{base}/", f"{base}:/opt/exec", "/missing", ""])
        if self.maybe(0.3):
            environment["PYTHONUSERBASE"] = chance.choice(["/opt/user", "/opt/user/", "/opt/x/../user", "", "rel"])
            self.sites += [f"/opt/user/lib/{self.kit.library}/site-packages"] * 2
        if self.maybe(0.25):
            environment["PYTHONNOUSERSITE"] = chance.choice(["1", "0", "x", "", "-1", "2"])
        if self.maybe(0.15):
            environment["PYTHONSAFEPATH"] = chance.choice(["1", ""])
        if self.maybe(0.2):
            environment["VIRTUAL_ENV"] = "/opt/venv"
        if self.maybe(0.06):
            environment["PYTHONEXECUTABLE"] = chance.choice(
                [f"{base}/bin/python3", "/missing/bin/python", "/opt/venv/bin/python", ""]
            )

    def zip(self, path: str) -> None:
        chance = self.chance
        file = self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        names = [
            "torch/__init__.py",
            "torch.py",
            "torch/_C.py",
            "torch/other.py",
            "sub/torch.py",
            "vllm/__init__.py",
            "torch/",
            "x",
        ]
        with zipfile.ZipFile(file, "w") as archive:
            for name in chance.sample(names, chance.randint(0, 4)):
                archive.writestr(name, "")
            if self.maybe(0.2):
                archive.comment = b"a comment"
        if self.maybe(0.1):
            file.write_bytes(b"#!/bin/sh\n" + file.read_bytes())
        if self.maybe(0.1):
            file.write_bytes(file.read_bytes()[:-5])
        self.paths.append(file)

    def fill(self) -> None:
        """Add modules and `.pth` files to the folders."""
        chance = self.chance
        if self.maybe(0.3):
            self.zip("/src.zip")
        for place in [*dict.fromkeys(chance.sample(self.sites, min(len(self.sites), 4))), "/src", "/src2", "/opt/more"]:
            if not self.maybe(0.7):
                continue
            self.folder(place)
            if self.maybe(0.45):
                self.torch(place)
            if self.maybe(0.2):
                self.write(f"{place}/vllm/__init__.py")
            if self.maybe(0.15):
                name = chance.choice(["sitecustomize", "usercustomize"])
                if self.maybe(0.8):
                    code = chance.choice([self.mark(f"{place}/{name}.py"), *(code[0] for code in _CODE.values())])
                    self.write(f"{place}/{name}.py", code)
                else:
                    self.write(f"{place}/{name}/__init__.py", self.mark(f"{place}/{name}/__init__.py"))
            while self.maybe(0.45):
                self.pth(place)

    def mark(self, path: str) -> str:
        self.marks += 1
        return f"import sys; sys.ran = getattr(sys, 'ran', []) + [({path!r}, {self.marks})]"

    def torch(self, place: str) -> None:
        suffixes = [f".{self.kit.tag}.so", ".abi3.so", ".so", ".cpython-37m-x86_64-linux-gnu.so", ".pyc"]
        for what in self.chance.choices(range(9), k=self.chance.randint(1, 2)):
            match what:
                case 0 | 1 | 2 if not self.at(f"{place}/torch").is_symlink():
                    file = self.write(f"{place}/torch/__init__.py", "x = 1")
                    if self.maybe(0.5):
                        self.compiled(file)
                    for suffix in self.chance.sample(suffixes, self.chance.randint(0, 3)):
                        self.write(f"{place}/torch/_C{suffix}")
                    if self.maybe(0.5):
                        self.write(f"{place}/torch/lib/libtorch.so")
                case 3 if not self.at(f"{place}/torch").is_symlink():
                    self.write(f"{place}/torch/lib/libtorch.so")
                case 4:
                    self.compiled(self.write(f"{place}/torch.py", "x = 1"))
                case 5:
                    self.write(f"{place}/torch{self.chance.choice(suffixes)}")
                case 6 if not self.at(f"{place}/torch").is_symlink():
                    self.write(f"{place}/torch/__init__{self.chance.choice(suffixes)}")
                case 7:
                    self.write(f"{place}/Torch/__init__.py")
                case 8 if not self.at(f"{place}/torch").exists() and not self.at(f"{place}/torch").is_symlink():
                    target = self.chance.choice(["/opt/more/torch", "/nowhere", "/src/torch"])
                    self.link(f"{place}/torch", os.path.relpath(target, place))  # never out of the tree
                case _:
                    pass

    def compiled(self, source: Path) -> None:
        """Perhaps add bytecode for a source, either up to date or stale."""
        if self.at(str(source)).is_relative_to(self.root) and self.maybe(0.6):
            cache = source.parent / "__pycache__"
            cache.mkdir(exist_ok=True)
            major, minor = self.kit.version
            status = source.stat()
            seconds = int(status.st_mtime) - (100 if self.maybe(0.2) else 0)
            head = next((self.kit.folder / "stdlib/__pycache__").glob("os.*.pyc")).read_bytes()[:4]
            body = next((self.kit.folder / "stdlib/__pycache__").glob("stat.*.pyc")).read_bytes()[16:]
            data = (
                head + (0).to_bytes(4, "little") + seconds.to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
            )
            file = cache / f"{source.stem}.cpython-{major}{minor}.pyc"
            file.write_bytes(data + body)
            self.paths.append(file)

    def pth(self, place: str) -> None:
        chance = self.chance
        lines: list[str] = []
        name = chance.choice(["a.pth", "B.pth", "easy-install.pth", "zz.pth", ".hidden.pth", "x.PTH", "distutils.pth"])
        path = f"{place}/{name}"
        for _ in range(chance.randint(0, 6)):
            line = chance.choice(_LINES)
            if line == "code":
                line = self.mark(path)
                if self.maybe(0.2):
                    line = line.replace("import sys", "import\tsys")
            elif line == "gone":
                line = chance.choice(["import nowhere_at_all", "import sys, nowhere_at_all"])
            elif line in _CODE and place != "/opt/more":
                line = chance.choice(_CODE[line])
            elif line == "egg.egg":
                self.zip(f"{place}/egg.egg")
            elif line == "./egg":
                self.folder(f"{place}/egg")
            lines.append(line)
        end = chance.choice(["\n", "\n", "\n", "\r\n"])
        text = (
            chance.choice([*[""] * 9, "\ufeff" if _LOCALE.is_dir() else ""])
            + end.join(lines)
            + chance.choice(["", end])
        )
        data = text.encode()
        if self.maybe(0.02):
            data += b"/\xff\n"
        self.write(path, data)

    def close(self) -> list[Path]:
        """Take permissions from some files and folders; return these."""
        chance = self.chance
        candidates = [path for path in self.paths if path.exists() and not path.is_symlink()]
        candidates += [
            folder
            for path in candidates
            for folder in path.parents
            if folder.is_relative_to(self.root) and folder != self.root
        ]
        stdlib = sorted(self.root.glob(f"*/lib/{self.kit.library}/encodings/*.py"))
        candidates += chance.sample(stdlib, min(2, len(stdlib)))
        candidates += [path.parent for path in stdlib[:1]]
        # what programs and libraries need stays accessible; files that all trees share are copied before a change
        shared = {self.at(path) for path in ("/lib", "/lib64", "/lib/x86_64-linux-gnu", "/usr", "/opt", "/bin")}
        shared |= {path for path in candidates if path.name == "bin" or path == self.root}
        closed = []
        for path in chance.sample(candidates, min(len(candidates), chance.randint(1, 3))):
            if path in shared or path in closed or any(part.name == "bin" for part in path.parents if path.is_dir()):
                continue
            if path.is_file() and path.stat().st_nlink > 1:
                copy = path.read_bytes()
                status = path.stat()
                path.unlink()
                path.write_bytes(copy)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            path.chmod(chance.choice([0o000, 0o111, 0o444]) if path.is_dir() else 0o000)
            closed.append(path)
        return closed


def _fedora(text: str) -> str:
    """Apply Fedora's 00251-change-user-install-location.patch."""
    trace = '    _trace("Processing global site-packages")\n'
    loop = "    for sitedir in getsitepackages(prefixes):\n"
    at = trace if trace in text else loop
    more = (
        "    if ENABLE_USER_SITE and 'RPM_BUILD_ROOT' not in os.environ:\n        PREFIXES.insert(0, \"/usr/local\")\n"
    )
    return text.replace(at, at + more if at == trace else more + at)


def _debian(text: str, *, by_variable: bool) -> str:
    """Apply Debian's patch: the one from bullseye if `by_variable`, otherwise the current one."""
    if by_variable:
        condition = "'VIRTUAL_ENV' in os.environ or sys.base_prefix != sys.prefix"
    else:
        condition = 'sys.base_prefix != sys.prefix or hasattr(sys, "real_prefix")'
    version = '"python%d.%d" % sys.version_info[:2]'
    more = f"""
            if {condition}:
                sitepackages.append(os.path.join(prefix, "lib", {version}, "site-packages"))
            sitepackages.append(os.path.join(prefix, "local/lib", {version}, "dist-packages"))
            sitepackages.append(os.path.join(prefix, "lib", "python3", "dist-packages"))
"""
    head, start, rest = text.partition("def getsitepackages")
    body, end, tail = rest.partition("\ndef ")
    body = body.replace("        if os.sep == '/':\n", "        if os.sep == '/':\n" + more.lstrip("\n"), 1)
    first, last = body.split("        else:\n            sitepackages", 1)
    first, mark, loop = first.partition(more.rstrip().splitlines()[-1])
    loop = loop.replace("site-packages", "dist-packages")
    return head + start + first + mark + loop + "        else:\n            sitepackages" + last + end + tail


@dataclass(frozen=True)
class Happened:
    """What a Python reports after it has started."""

    path: list[str]
    specs: list[tuple[str | None, list[str], str, bool] | None]
    ran: list[tuple[str, int]]


def start_in(tree: Tree) -> Happened | str:
    """Start the Python of a tree in it; return its report, or why it ended."""
    reading, writing = os.pipe()
    complains, errors = os.pipe()
    argv = [tree.program, "-B", *tree.options, "-c", f"NAMES = {NAMES!r}\n{_ASK}"]
    environment = tree.environment | {"LC_ALL": "C.UTF-8"}
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writing, 1)
            os.dup2(errors, 2)
            _enter(tree.root)
            os.execve(tree.program, argv, environment)  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - this process must end here in any case
            os.write(2, f"not started: {error!r}".encode())
        finally:
            os._exit(97)
    os.close(writing)
    os.close(errors)
    with os.fdopen(reading, "rb") as out, os.fdopen(complains, "rb") as err:
        reported, complaint = out.read(), err.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        return f"{code}: {complaint.decode('utf-8', 'replace')}"
    path, specs, ran = ast.literal_eval(reported.decode("utf-8", "surrogateescape"))
    return Happened([each for each in path if not each.startswith("/cwd")], specs, [*dict.fromkeys(ran)])


def _enter(root: Path) -> None:
    if os.geteuid() == 0:
        os.chroot(root)
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    else:
        user, of_group = os.geteuid(), os.getegid()
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{_NOBODY} {user} 1"),
            ("gid_map", f"{_NOBODY} {of_group} 1"),
        ):
            Path(f"/proc/self/{file}").write_text(text)
        os.chroot(root)
    os.chdir("/cwd")
