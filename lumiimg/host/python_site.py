"""Effects of site.py while a Python starts: the folders that it adds to sys.path, and the code that it runs.

Sources: CPython Lib/site.py; Debian's patch of it (dist-packages), Fedora's (/usr/local). Which of them applies is read
from the image's own site.py: since 3.11 a frozen copy runs, which was built from that file.
"""

from __future__ import annotations

import re
from functools import partial
from io import StringIO
from posixpath import normpath
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.host.module_finder import SpecKind
from lumiimg.host.root_queries import names_in
from lumiimg.host.startup_code import CodeEffects, StartupCode, StartupProcess, read_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.host.getpath import PathConfig
    from lumiimg.host.module_finder import ModuleFinder, ModuleSpec
    from lumiimg.image import RootFileSystem

_MAX_TEXT_BYTES = 1 << 20
_MAX_PTH_FILES, _MAX_LINES, _MAX_ENTRIES = 500, 20_000, 1000
"""Files, lines and folders beyond these limits count as code that is not read."""
_MAX_WITHIN = 50
"""Nesting limit for site folders that add each other; beyond it, the same."""
_LOCAL_PREFIX = re.compile(r"if ENABLE_USER_SITE and .*\n\s+PREFIXES\.insert\(0, ['\"](/[^'\"]{1,200})['\"]\)")


class Site:
    """The effects of site.py on a process, once it has run."""

    def __init__(
        self,
        root: RootFileSystem,
        finder: ModuleFinder,
        paths: PathConfig,
        environment: Mapping[str, str],
    ) -> None:
        """Model a run of site.py on a root as users see it."""
        self._root, self._finder, self._paths = root, finder, paths
        self._read = partial(read_source, root)
        self._process = StartupProcess(self._find, self._read, environment)
        self._within: set[str] = set()
        self._pth_files = self._lines = 0
        self.path = [*paths.path]
        self._text = self._source(self._find("site")) or ""
        """Source of the image's own site.py, which is imported before it normalizes the path."""
        self.path = [*dict.fromkeys(map(normpath, self.path))]
        self._known = set(self.path)
        self.opened: list[str] = []
        self.effects: dict[StartupCode, CodeEffects] = {}
        """Effects of all code, in execution order."""
        self.cut_short: dict[str, None] = {}
        """`.pth` files with folders after a line of code that may fail, and so end the file."""
        by_variable = "'VIRTUAL_ENV' in os.environ" in self._text and "VIRTUAL_ENV" in environment
        venv = paths.venv
        self._is_virtual = by_variable or (venv is not None and venv.prefix != paths.prefix)
        prefixes = [paths.prefix]
        if venv is not None:
            self.opened.append(f"{venv.prefix}/pyvenv.cfg")
            self._add_sites([venv.prefix])
            prefixes = [venv.prefix, *(prefixes if venv.takes_system else ())]
        enables_user = paths.takes_user and (venv is None or venv.takes_system)
        user_base = environment.get("PYTHONUSERBASE", "")
        user = f"{user_base}/lib/{paths.library}/site-packages"
        if enables_user and user_base.startswith("/") and self._root.is_dir(user):
            self._add_site(user)
        if enables_user and (local := _LOCAL_PREFIX.search(self._text)):
            prefixes.insert(0, local[1])
        self._add_sites(prefixes)
        self._customize("sitecustomize")
        if enables_user:
            self._customize("usercustomize")

    def _find(self, name: str) -> ModuleSpec | None:
        return self._finder.find_spec(name, self.path)

    def _source(self, spec: ModuleSpec | None) -> str | None:
        origin = spec.origin if spec is not None and spec.kind is SpecKind.SOURCE else None
        return self._read(origin) if origin is not None else None

    def _add_sites(self, prefixes: Sequence[str]) -> None:
        """Add the existing site folders of prefixes (getsitepackages, addsitepackages)."""
        lib, library = self._paths.lib, self._paths.library
        libs = dict.fromkeys((lib, "lib"))
        for prefix in dict.fromkeys(filter(None, prefixes)):
            folders = [f"{each}/{library}/site-packages" for each in libs]
            if "dist-packages" in self._text:  # Debian's patch
                short = library.removesuffix("t")
                folders = [f"lib/{short}/site-packages"] if self._is_virtual else []
                folders += [f"local/lib/{short}/dist-packages", "lib/python3/dist-packages"]
                folders += [f"{each}/{library}/dist-packages" for each in libs]
            for folder in folders:
                if self._root.is_dir(f"{prefix}/{folder}"):
                    self._add_site(f"{prefix}/{folder}")

    def _add_site(self, folder: str) -> None:
        """Add a folder, then what the lines of its `.pth` files add (addsitedir)."""
        folder = normpath(folder)
        self._add(folder)
        hides = 'not name.startswith(".")' in self._text
        names = [name for name in names_in(self._root, folder) if name.endswith(".pth")]
        for name in sorted(name for name in names if not (hides and name.startswith("."))):
            self._pth_files += 1
            if self._pth_files > _MAX_PTH_FILES:
                self._run(StartupCode(folder, None))
                return
            self._add_package(folder, f"{folder}/{name}")

    def _add(self, path: str) -> None:
        if path in self._known:
            return
        if len(self.path) >= _MAX_ENTRIES:
            self._run(StartupCode(path, None))
            return
        self.path.append(path)
        self._known.add(path)

    def _add_package(self, folder: str, path: str) -> None:
        """Process the lines of a `.pth` file (addpackage)."""
        try:
            encoding = "utf-8-sig" if "utf-8-sig" in self._text else "utf-8"
            text = self._root.read_bytes(path, _MAX_TEXT_BYTES).decode(encoding)
        except OSError:
            return
        except (BadInputError, UnicodeDecodeError):
            self._run(StartupCode(path, None))
            return
        self.opened.append(path)
        may_have_failed = False
        # older versions read the file line by line, newer ones split it at form feeds, too
        is_split = ".splitlines(), 1)" in self._text
        for line in text.splitlines() if is_split else StringIO(text, newline=None).read().split("\n"):
            if line.startswith("#") or not line.strip():
                continue
            self._lines += 1
            if self._lines > _MAX_LINES:
                self._run(StartupCode(path, None))
                return
            if line.startswith(("import ", "import\t")):
                may_have_failed |= self._run(StartupCode(path, line))
            else:
                line = line.rstrip()  # noqa: PLW2901 - as site.py does it
                entry = normpath(line if line.startswith("/") else f"{folder}/{line}")
                if self._root.exists(entry):
                    self.cut_short |= {path: None} if may_have_failed and entry not in self._known else {}
                    self._add(entry)

    def _run(self, code: StartupCode) -> bool:
        """Apply a piece of code to sys.path, and return whether it may fail; code of an environment runs twice."""
        if code not in self.effects:
            self.effects[code] = self._process.run(code)
        effects = self.effects[code]
        for folder, is_in_front in effects.paths:
            self.path.insert(0 if is_in_front else len(self.path), folder)
        for folder in effects.sites:
            if folder in self._within:
                continue
            if len(self._within) < _MAX_WITHIN:
                self._add_site_by_code(folder)
            else:
                self._run(StartupCode(folder, None))
        return effects.may_fail

    def _add_site_by_code(self, folder: str) -> None:
        """Add a folder: the entries that exist count as known meanwhile, and what is added is not known later."""
        outer, self._known = self._known, {each for each in self.path if self._root.exists(each)}
        self._within.add(folder)
        self._add_site(folder)
        self._known = outer
        self._within.discard(folder)

    def _customize(self, name: str) -> None:
        """Import a customization module where there is one; an error in it does not end Python."""
        spec = self._find(name)
        file = self._finder.code_file(spec) if spec is not None else None
        if spec is not None and file is not None:
            self.opened.append(file)
            self._run(StartupCode(spec.origin or file, self._source(spec)))
