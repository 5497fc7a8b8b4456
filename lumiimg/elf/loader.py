"""A model of glibc's ld.so: what one process would load from a root file system, and from where.

The rules are those of `elf/dl-load.c` (where a name is searched), `elf/dl-deps.c` (in which order) and
`elf/dl-version.c` (whether the versions fit) of glibc 2.26 to 2.43; ld.so(8) tells them in short. A process is started
with a program or a library, as `ld.so --list` does it, and may then dlopen more on top of what it has:

    process = Process(fs, Settings(library_path="/opt/lib"))
    process.start("/usr/bin/python3")
    outcome = process.dlopen("librccl-net.so", requester)

Where ld.so stops at the first error, the model notes it and goes on, so that one run tells all that is wrong.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.elf.facts import DF_1_NOOPEN, DF_1_PIE, ET_DYN
from lumiimg.elf.files import Files, FileSystem, Native, Opened, Verdict
from lumiimg.elf.hwcaps import isa_is_enough
from lumiimg.elf.objects import FoundBy, LoadedObject, LoadOutcome, MissingLibrary, MissingVersion
from lumiimg.elf.rules import SearchRules, Settings
from lumiimg.elf.search import Found, expand, origin_of
from lumiimg.elf.system import System, read_whole
from lumiimg.elf.version_check import VersionCheck
from lumiimg.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Hashable

_SPELLED_AT_START = (errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.EPERM, errno.EIO, errno.EACCES)
_DEFAULT_NATIVE = Native(machine=62, elf_class=64)
_PRELOAD_FILE = "/etc/ld.so.preload"
_MAX_PRELOAD_BYTES = 1 << 20
_MAX_OBJECTS = 4096
_FIRST_MINOR_CHECKING_ISA = 33
_FIRST_MINOR_REFUSING_STACK = 41
_FIRST_MINOR_WITH_REAL_ORIGIN = 41


@dataclass(slots=True)
class _Report:
    """What one load has met so far."""

    order: list[LoadedObject]
    missing: list[MissingLibrary]
    missing_versions: list[MissingVersion]
    errors: list[str]
    warnings: list[str]
    closure: dict[str, str | None]

    def outcome(
        self, root: LoadedObject | None, found_by: FoundBy | None, *, already: frozenset[LoadedObject] = frozenset()
    ) -> LoadOutcome:
        return LoadOutcome(
            root=root,
            found_by=found_by,
            objects=tuple(loaded for loaded in self.order if loaded not in already),
            missing=tuple(self.missing),
            missing_versions=tuple(self.missing_versions),
            errors=tuple(dict.fromkeys(self.errors)),
            warnings=tuple(dict.fromkeys(self.warnings)),
            closure=self.closure,
        )


def _empty_report() -> _Report:
    return _Report([], [], [], [], [], {})


class Process:
    """One process: the objects that it has loaded, and the rules by which it loads more.

    `files` may be shared by processes over the same root file system, which saves reading its libraries again.
    """

    def __init__(self, fs: FileSystem, settings: Settings | None = None, *, files: Files | None = None) -> None:
        self.settings = settings or Settings()
        self.objects: list[LoadedObject] = []
        self._files = files or Files(fs)
        self._native = _DEFAULT_NATIVE
        self._names: dict[str, LoadedObject] = {}
        self._identities: dict[Hashable, LoadedObject] = {}
        self._missing: set[str] = set()
        self._system: System | None = None
        self._rules: SearchRules | None = None
        self._stack_is_executable = False
        self._is_running = False

    @property
    def system(self) -> System:
        """What the loader of this process has compiled in. Only after `start`."""
        if self._system is None:
            raise RuntimeError("the process is not started")
        return self._system

    def start(self, path: str, *, by_kernel: bool = False) -> LoadOutcome:
        """Start a program, or load a library alone, as `ld.so --list PATH` does it.

        $ORIGIN of the program is the directory of its real path where the kernel starts it (`by_kernel`: it is run by
        its own name), and since glibc 2.41 under an explicit ld.so too; before that, of the path as given.
        """
        report = _empty_report()
        self._native = self._files.native_of(self.settings.absolute(path)) or _DEFAULT_NATIVE
        opened = self._files.open(self.settings.absolute(path), self._native)
        if opened.verdict is not Verdict.GOOD or opened.facts is None:
            report.errors.append(self._failure(path, opened))
            return report.outcome(None, None)
        facts = opened.facts
        system = self._system = self._files.system(self._native, facts.interpreter)
        absolute = self.settings.absolute(path)
        if by_kernel or system.glibc_minor is None or system.glibc_minor >= _FIRST_MINOR_WITH_REAL_ORIGIN:
            absolute = self._files.fs.resolve(absolute)
        main = LoadedObject(path, path, facts, FoundBy.PROGRAM, None, origin_of(absolute, "/"))
        self._add(main, opened.identity)
        report.order.append(main)
        if not facts.is_dynamic:
            return report.outcome(main, FoundBy.PROGRAM)
        if facts.interpreter and "ld-musl" in facts.interpreter:
            report.errors.append(f"{path}: its loader is {facts.interpreter} of musl, not glibc's")
            return report.outcome(main, FoundBy.PROGRAM)
        self._rules = SearchRules(self._files, self._native, self.settings, system, main)
        report.warnings.extend(self._system.warnings)
        self._check_isa(main, report)
        self._add_loader(main, report)
        self._preload(main, report)
        self._load_needed(report)
        if len(report.order) > 1:
            # it is in every process; ld.so lists it last where nothing needs it, and calls a lone object static
            report.order.extend(loader for loader in self.objects[1:2] if loader not in report.order)
        self._stack_is_executable = any(loaded.facts.executable_stack for loaded in report.order)
        self._check_versions(report.order, report, at_start=True)
        self._is_running = True
        return report.outcome(main, FoundBy.PROGRAM)

    def dlopen(self, name: str, requester: LoadedObject | None = None) -> LoadOutcome:
        """Load a library on top of what the process has; `requester` is the object whose code calls dlopen."""
        if not self.objects:
            raise RuntimeError("the process is not started")
        report = _empty_report()
        already = frozenset(self.objects)
        root = self._map(name, requester or self.objects[0], report, expand_name="/" in name)
        if root is None:
            return report.outcome(None, None)
        if root in already:
            report.closure[name] = root.path
            return report.outcome(root, FoundBy.ALREADY_LOADED, already=already)
        if root.facts.flags_1 & DF_1_NOOPEN:
            report.errors.append(f"{root.path}: shared object cannot be dlopen()ed")
        report.order.append(root)
        report.closure[name] = root.path
        self._load_needed(report)
        new = [loaded for loaded in report.order if loaded not in already]
        self._check_versions(new, report, at_start=False)
        self._check_stack(new, report)
        return report.outcome(root, root.found_by, already=already)

    def find(self, name: str) -> LoadedObject | None:
        """Return the object of the process that a name, path or soname belongs to."""
        return self._names.get(name)

    def _add(self, loaded: LoadedObject, identity: Hashable) -> None:
        self.objects.append(loaded)
        self._identities.setdefault(identity, loaded)
        for name in (loaded.name, loaded.path, loaded.facts.soname):
            if name:
                self._names.setdefault(name, loaded)

    def _add_loader(self, main: LoadedObject, report: _Report) -> None:
        """Put the loader itself into the process: a need for it is met before any search."""
        path = self.system.loader
        opened = self._files.open(self.settings.absolute(path), self._native)
        if opened.verdict is not Verdict.GOOD or opened.facts is None:
            report.errors.append(self._failure(path, opened))
            return
        if opened.identity in self._identities:
            return  # the loader was started on itself
        name = opened.facts.soname or path
        loader = LoadedObject(name, path, opened.facts, FoundBy.INTERPRETER, main, origin_of(path, "/"))
        self._add(loader, opened.identity)

    def _preload(self, main: LoadedObject, report: _Report) -> None:
        sources = [("LD_PRELOAD", name) for entry in self.settings.preload for name in re.split("[ :]", entry) if name]
        sources += [(_PRELOAD_FILE, name) for name in self._preload_file()]
        for source, name in sources:
            attempt = _empty_report()
            loaded = self._map(name, main, attempt, expand_name="/" in name, found_by=FoundBy.PRELOAD)
            if loaded is not None and loaded not in report.order:
                report.order.append(loaded)
                report.closure[name] = loaded.path
            for error in attempt.errors:
                words = error.split(": ", 1)[-1].removesuffix(f": {os.strerror(errno.ENOENT)}")
                report.warnings.append(
                    f"ERROR: ld.so: object '{name}' from {source} cannot be preloaded ({words}): ignored."
                )

    def _preload_file(self) -> list[str]:
        try:
            data = read_whole(self._files.fs, _PRELOAD_FILE, _MAX_PRELOAD_BYTES)
        except (OSError, BadInputError):
            return []
        text = re.sub(r"#[^\n]*", " ", data.decode("utf-8", "surrogateescape"))
        return [name for name in re.split(r"[ \t\n:]+", text) if name]

    def _load_needed(self, report: _Report) -> None:
        """Load what the objects of a list need, breadth first; filtees come before the object that filters them."""
        index = 0
        while index < len(report.order) and len(self.objects) < _MAX_OBJECTS:
            loaded = report.order[index]
            facts = loaded.facts
            for name in facts.needed:
                dependency = self._map(name, loaded, report, expand_name=True)
                if report.closure.get(name) is None:
                    # the same name may be found for one object and not for another
                    report.closure[name] = dependency.path if dependency else None
                if dependency is not None and dependency not in report.order:
                    report.order.append(dependency)
            for name, must_exist in (*((n, True) for n in facts.filter), *((n, False) for n in facts.auxiliary)):
                attempt = report if must_exist else _empty_report()
                filtee = self._map(name, loaded, attempt, expand_name=True)
                if filtee is not None and filtee not in report.order:
                    report.order.insert(index, filtee)
                    report.closure.setdefault(name, filtee.path)
                    index += 1
            index += 1

    def _map(
        self,
        name: str,
        requester: LoadedObject,
        report: _Report,
        *,
        expand_name: bool,
        found_by: FoundBy | None = None,
    ) -> LoadedObject | None:
        """Return the object for a name: one of the process, or a file that the rules find (`_dl_map_object`)."""
        if self._rules is None:
            raise RuntimeError("the process has no loader: it is static, or not started")
        wanted = expand(name, origin=requester.origin, system=self.system) if expand_name else name
        known = self._names.get(wanted)
        if known is not None:
            return known
        rule, found, other_class = self._rules.search(wanted, requester)
        if found is None or found.opened.verdict is not Verdict.GOOD or found.opened.facts is None:
            self._missing.update((name, wanted))
            report.errors.append(self._missing_words(wanted, found, other_class=other_class))
            if found is None or found.opened.verdict is not Verdict.FATAL:
                report.missing.append(MissingLibrary(name, requester))
            return None
        facts = found.opened.facts
        same = self._identities.get(found.opened.identity)
        if same is not None:
            self._names.setdefault(wanted, same)
            return same
        problem = None
        if not facts.is_dynamic:
            problem = "object file has no dynamic section"
        elif facts.flags_1 & DF_1_PIE:
            problem = "cannot dynamically load position-independent executable"
        elif facts.type != ET_DYN:
            problem = "cannot dynamically load executable"
        if problem:
            self._missing.update((name, wanted))
            report.errors.append(f"{found.path}: {problem}")
            return None
        origin = origin_of(found.path, self.settings.cwd)
        loaded = LoadedObject(wanted, found.path, facts, found_by or rule, requester, origin)
        self._add(loaded, found.opened.identity)
        self._check_isa(loaded, report)
        return loaded

    def _missing_words(self, name: str, found: Found | None, *, other_class: bool) -> str:
        if found is not None and found.opened.verdict is Verdict.FATAL:
            return self._failure(found.path, found.opened)
        number = found.opened.errno if found is not None else errno.ENOENT
        opened = Opened(Verdict.OTHER_CLASS if other_class else Verdict.ABSENT, errno=number)
        return self._failure(name, opened)

    def _check_versions(self, objects: list[LoadedObject], report: _Report, *, at_start: bool) -> None:
        check = VersionCheck(self._names.get, self._missing, self.system.glibc_minor)
        check.run(objects)
        report.missing_versions.extend(check.missing_versions)
        report.errors.extend(check.errors)
        if at_start:
            report.warnings.extend(check.warnings)

    def _check_isa(self, loaded: LoadedObject, report: _Report) -> None:
        minor = self.system.glibc_minor
        needed = loaded.facts.isa_needed
        if needed is None or (minor is not None and minor < _FIRST_MINOR_CHECKING_ISA):
            return
        if not isa_is_enough(needed, self.settings.hwcaps):
            report.errors.append(f"{loaded.path}: CPU ISA level is lower than required")

    def _check_stack(self, new: list[LoadedObject], report: _Report) -> None:
        """Refuse an executable stack in a running process, as glibc does since 2.41 (`elf/dl-load.c`)."""
        minor = self.system.glibc_minor
        if self._stack_is_executable or (minor is not None and minor < _FIRST_MINOR_REFUSING_STACK):
            return
        for loaded in new:
            if loaded.facts.executable_stack:
                words = "cannot enable executable stack as shared object requires"
                report.errors.append(f"{loaded.path}: {words}: {os.strerror(errno.EINVAL)}")

    def _failure(self, name: str, opened: Opened) -> str:
        """Return the loader's words for a file that it cannot take."""
        if opened.verdict is Verdict.OTHER_CLASS:
            return f"{name}: wrong ELF class: ELFCLASS{32 if self._native.elf_class == 64 else 64}"
        if opened.verdict is Verdict.FATAL and not opened.errno:
            return f"{name}: {opened.problem}"
        number = opened.errno or errno.ENOENT
        what = opened.problem or "cannot open shared object file"
        return f"{name}: {what}: {os.strerror(number) if self._is_running else _words_at_start(number)}"


def _words_at_start(number: int) -> str:
    """Return the text of an errno as ld.so has it before libc is there: few are spelled out (`elf/dl-minimal.c`)."""
    return os.strerror(number) if number in _SPELLED_AT_START else f"Error {number}"
