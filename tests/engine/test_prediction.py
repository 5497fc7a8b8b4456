"""Prediction and reality: the loader, the handshake and RCCL do what the model predicts for a situation.

Each situation is made in its own folder image: a clone of the image with the stand-in plugin on real libfabric, made of
hard links, so that it takes a tenth of a second. The model (`lumiimg check --level static`) and the container (the
handshake's dlopen, RCCL 2.13.4) get the same files, binds and variables. The cases expect what really happens: both
sides must agree with them, word for word.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.probe.container import read_events
from lumiimg.core.errors import ExitCode
from lumiimg.engine.workspace import remove_tree
from lumiimg.image import open_image
from tests.engine.conftest import Result, lumiimg
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import versioned
from tests.shared.programs import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

LIB = "/usr/lib/x86_64-linux-gnu"
CACHED = "/lib/x86_64-linux-gnu"
"""The same folder as named in the loader's cache."""
FOLDER = "/opt/aws-ofi-nccl/lib"
PLUGIN = f"{FOLDER}/librccl-net.so"
NAMES = ("librccl-net.so", "libnccl-net.so", "librccl-net-ofi.so", "libnccl-net-ofi.so")
FABRIC = f"{LIB}/libfabric.so.1"
FABRIC_VERSIONS = tuple(f"FABRIC_1.{minor}" for minor in range(9))
RCCL = f"{LIB}/librccl.so.1"
HANDSHAKE = "/opt/lumiimg/netprobe/bin/handshake"
RCCLPROBE = "/opt/lumiimg/netprobe/bin/rcclprobe"
SYMBOL = "int ncclNetPlugin_v6;"
CUT_BYTES = 20_000
BUS_ERROR = 128 + 7

GONE = "cannot open shared object file: No such file or directory"
ABSENT = f"librccl-net.so: {GONE}"
HOST = "plugin.needs-host"
NO_STACK = "cannot enable executable stack as shared object requires: Invalid argument"
NOT_FOUND_LINE = re.compile(r"NET/Plugin : No plugin found \((.*)\), using internal implementation")

# two programs in one container, one after the other
QUESTIONS = f"""\
exec 2>&1
echo "@question handshake"; {HANDSHAKE} "$1"; echo "@code $?"
echo "@question rccl"; NCCL_DEBUG=INFO {RCCLPROBE} {RCCL}; echo "@code $?"
"""


# -- a situation, and what happens in it --


@dataclass
class Situation:
    """A folder image that may be damaged, and how a container is started from it."""

    root: Path
    outside: Path
    """For files that are not in the image."""
    binds: list[tuple[Path, str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def at(self, path: str) -> Path:
        return self.root / path[1:]

    def drop(self, *paths: str) -> None:
        for path in paths:
            self.at(path).unlink()

    def new(self, path: str) -> Path:
        """Return the path for a new file; an existing file is not written to, as other clones share it."""
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        return place

    def own(self, path: str = PLUGIN) -> Path:
        """Replace a file with a private copy of this clone."""
        data = self.at(path).read_bytes()
        place = self.new(path)
        place.write_bytes(data)
        return place

    def patch(self, path: str, *words: str) -> None:
        subprocess.run(["patchelf", *words, self.own(path)], check=True)

    def move(self, path: str, folder: str) -> None:
        """Move a library, with all file names that begin with its name."""
        self.at(folder).mkdir(parents=True, exist_ok=True)
        source = self.at(path)
        for file in sorted(source.parent.glob(f"{source.name}*")):
            file.rename(self.at(folder) / file.name)

    def resolved(self, path: str) -> str:
        """Return the path as the kernel shows it; the last component may exist only through a bind."""
        folder, _, name = path.rpartition("/")
        with open_image(self.root) as image:
            return image.root.resolve(path) if image.root.exists(path) else f"{image.root.resolve(folder)}/{name}"

    def place(self) -> None:
        """Put what is bound into the image: that is equivalent for the loader, and `check` only gets an image."""
        for source, target in self.binds:
            shutil.copy(source, self.new(self.resolved(target)))

    def check(self, engine: Engine) -> Result:
        return lumiimg("check", self.root, "--level", "static", "--json", env=self.variables(engine))

    def variables(self, engine: Engine) -> dict[str, str]:
        return {f"{engine.prefix}ENV_{name}": value for name, value in self.env.items()}


@dataclass(frozen=True)
class Ran:
    """What one program in the container printed, and how it ended."""

    code: int
    text: str
    events: tuple[dict[str, str], ...]

    @property
    def opened(self) -> dict[str, str]:
        return next((event for event in self.events if event["topic"] == "dlopen"), {})


@dataclass(frozen=True)
class Reality:
    handshake: Ran
    rccl: Ran


def happens(engine: Engine, situation: Situation, name: str) -> Reality:
    """Start one container: the handshake opens a name, and RCCL searches for itself."""
    binds = [word for source, target in situation.binds for word in ("--bind", f"{source}:{target}")]
    done = subprocess.run(
        [engine.path, "--silent", "exec", *binds, situation.root, "sh", "-c", QUESTIONS, "sh", name],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | situation.variables(engine),
    )
    reported: dict[str, Ran] = {}
    for part in done.stdout.split("@question ")[1:]:
        question, _, rest = part.partition("\n")
        text, _, code = rest.rpartition("@code ")
        reported[question] = Ran(int(code), text, read_events(text))
    assert set(reported) == {"handshake", "rccl"}, done.stdout + done.stderr
    return Reality(**reported)


# -- the situations --


def no_plugin(it: Situation) -> None:
    it.drop(*(f"{folder}/{name}" for folder in (LIB, FOLDER) for name in NAMES))


def only_the_file(it: Situation) -> None:
    """Remove the other names of the plugin, including those in the loader's default folder."""
    it.drop(*(f"{LIB}/{name}" for name in NAMES), *(f"{FOLDER}/{name}" for name in NAMES[1:]))


def in_another_folder(it: Situation) -> None:
    only_the_file(it)
    it.move(PLUGIN, "/opt/other")


def host_libfabric_with_all(it: Situation) -> None:
    """A changed copy of the image's own serves as the host's: it needs libcxi, as one with the provider does."""
    fabric = it.outside / "libfabric.so.1"
    shutil.copy(it.at(FABRIC), fabric)
    # Debian's libfabric does not support GPU memory, which would be an open question
    for needed in ("libcxi.so.1", "libhsa-runtime64.so.1"):
        subprocess.run(["patchelf", "--add-needed", needed, fabric], check=True)
    json = versioned(it.outside / "libjson-c.so.5", defines=("JSONC_0.14",))
    cxi = versioned(it.outside / "libcxi.so.1", defines=("LIBCXI_1.5",), needs={json: ("JSONC_0.14",)})
    it.binds += [(file, f"{LIB}/{file.name}") for file in (fabric, cxi, json)]


def host_libfabric_that_needs(it: Situation, library_name: str, version: str) -> None:
    newer = versioned(it.outside / "newer" / library_name, defines=(version,))
    fabric = versioned(it.outside / "libfabric.so.1", defines=FABRIC_VERSIONS, needs={newer: (version,)})
    it.binds.append((fabric, FABRIC))


def host_libcxi_too_old(it: Situation) -> None:
    host_libfabric_that_needs(it, "libcxi.so.1", "LIBCXI_1.4")
    it.binds.append((versioned(it.outside / "libcxi.so.1", defines=("LIBCXI_1.0",)), f"{LIB}/libcxi.so.1"))


def two_libfabrics(it: Situation) -> None:
    """One by its soname, for the plugin; one by its path, for a library that is loaded later."""
    shutil.copy(it.at(FABRIC), it.new("/opt/lf/lib/libfabric.so.1"))
    it.patch(PLUGIN, "--force-rpath", "--set-rpath", "/opt/lf/lib")
    it.patch(PLUGIN, "--add-needed", "libuser.so")
    library(it.new(f"{LIB}/libuser.so"))
    it.patch(f"{LIB}/libuser.so", "--add-needed", FABRIC)


def for_another_machine(it: Situation) -> None:
    data = bytearray(it.at(PLUGIN).read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    it.new(PLUGIN).write_bytes(data)


def cut(it: Situation) -> None:
    """Cut off the file before its dynamic section: ld.so reads that, and dies."""
    large = f"{SYMBOL} const char rest[1 << 18] = {{1}};"
    os.truncate(library(it.new(PLUGIN), source=large), CUT_BYTES)


def dangling(it: Situation) -> None:
    it.new(PLUGIN).symlink_to("/opt/cray/librccl-net.so")


def undefined_symbol(it: Situation) -> None:
    library(it.new(PLUGIN), source=f"{SYMBOL} int nowhere(void); int of(void) {{ return nowhere(); }}")


def with_static_tls(path: Path, size_bytes: int) -> None:
    source = f"{SYMBOL} __thread char block[{size_bytes}]; char *of_thread(void) {{ return block; }}"
    library(path, "-ftls-model=initial-exec", source=source)


@dataclass(frozen=True)
class Case:
    """What really happens in a situation, and what a user must see."""

    make: Callable[[Situation], object]
    words: str | None = None
    """The first error of dlopen; None if it loads or dies."""
    dies: bool = False
    """Whether it dies of SIGBUS in the loader."""
    name: str = "librccl-net.so"
    """The name that RCCL passes to dlopen."""
    cause: str = ""
    """The id under which `check` reports the fault, if it is not `plugin.loads`."""

    @property
    def loads(self) -> bool:
        return self.words is None and not self.dies

    @property
    def finding(self) -> str:
        return self.cause or ("" if self.loads else "plugin.loads")


CASES: dict[str, Case] = {
    "nothing is wrong": Case(lambda _: None),
    "no plugin": Case(no_plugin, ABSENT, cause="plugin.absent"),
    "in a folder that is not searched": Case(in_another_folder, ABSENT, cause="plugin.not-on-path"),
    "no libfabric": Case(lambda it: it.move(FABRIC, "/opt/nowhere"), f"libfabric.so.1: {GONE}", cause=HOST),
    "host libfabric with all that it needs": Case(host_libfabric_with_all),
    "host libcxi too old": Case(
        host_libcxi_too_old,
        f"{CACHED}/libcxi.so.1: version `LIBCXI_1.4' not found (required by {CACHED}/libfabric.so.1)",
    ),
    "host libfabric for a newer glibc": Case(
        lambda it: host_libfabric_that_needs(it, "libc.so.6", "GLIBC_2.99"),
        f"{CACHED}/libc.so.6: version `GLIBC_2.99' not found (required by {CACHED}/libfabric.so.1)",
    ),
    "two copies of libfabric": Case(two_libfabrics, cause="fabric.mixed"),
    "for another machine": Case(for_another_machine, ABSENT, cause="plugin."),
    "cut off at 20000 bytes": Case(cut, dies=True),
    "a dangling link": Case(dangling, ABSENT, cause="plugin.dangling"),
    "a symbol is nowhere": Case(undefined_symbol, f"{PLUGIN}: undefined symbol: nowhere", cause="plugin."),
    "a program": Case(
        lambda it: shutil.copy(it.at("/usr/bin/true"), it.new(PLUGIN)),
        "librccl-net.so: cannot dynamically load position-independent executable",
    ),
    "executable stack": Case(
        lambda it: library(it.new(PLUGIN), "-Wl,-z,execstack", source=SYMBOL),
        f"librccl-net.so: {NO_STACK}",
    ),
    "static TLS too big": Case(
        lambda it: with_static_tls(it.new(PLUGIN), 1 << 16),
        f"{PLUGIN}: cannot allocate memory in static TLS block",
    ),
    "NCCL_NET_PLUGIN=none": Case(
        lambda it: it.env.update(NCCL_NET_PLUGIN="none"),
        f"librccl-net-none.so: {GONE}",
        name="librccl-net-none.so",
        cause="plugin.other-name",
    ),
}


# -- the comparison --


@pytest.fixture(scope="module")
def sandbox(engine: Engine, with_plugin: Path, images: Path) -> Iterator[Path]:
    """A folder of the image with the stand-in plugin."""
    needs("gcc", "patchelf", "strip")
    folder = images / "prediction"
    fakeroot = ["--fakeroot"] if os.geteuid() else []
    subprocess.run([engine.path, "build", *fakeroot, "--sandbox", folder, with_plugin], capture_output=True, check=True)
    remove_tree(folder / "var/cache")  # apt has a folder there that only its own user may enter
    yield folder
    remove_tree(folder)


@pytest.fixture
def situation(sandbox: Path, tmp_path: Path) -> Iterator[Situation]:
    root = sandbox.with_name("clone")
    shutil.copytree(sandbox, root, symlinks=True, copy_function=os.link)
    yield Situation(root, tmp_path)
    remove_tree(root)


MAIN = (
    "nothing is wrong",
    "no plugin",
    "in a folder that is not searched",
    "no libfabric",
    "host libcxi too old",
    "host libfabric for a newer glibc",
    "two copies of libfabric",
    "cut off at 20000 bytes",
    "a symbol is nowhere",
    "NCCL_NET_PLUGIN=none",
)
"""Cases that users encounter."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[pytest.mark.core] if name in MAIN else []) for name, case in CASES.items()],
)
def test_what_is_predicted_is_what_happens(engine: Engine, situation: Situation, case: Case) -> None:
    case.make(situation)
    real = happens(engine, situation, case.name)
    situation.place()
    check = situation.check(engine)

    assert_reality(case, real)
    assert check.data["path"]["plugin_files"] == [case.name]
    assert_check_agrees(case, check, real.handshake)


def assert_reality(case: Case, real: Reality) -> None:
    """Assert that the case describes what really happened."""
    absent = [match[1] for match in NOT_FOUND_LINE.finditer(real.rccl.text)]
    if case.dies:
        assert (real.handshake.code, real.rccl.code) == (BUS_ERROR, BUS_ERROR)
        assert not absent
        return
    assert real.rccl.code == 0
    assert absent == ([] if case.loads else [case.name])
    assert real.handshake.opened["ok"] == ("1" if case.loads else "0")
    assert real.handshake.opened["error"] == (case.words or "")
    assert case.loads == ("Failed to find ncclNetPlugin symbol" not in real.rccl.text and not absent)


def assert_check_agrees(case: Case, check: Result, handshake: Ran) -> None:
    """Assert that `lumiimg check` agrees, or says that only a host can show it; a no quotes the loader."""
    found = check.data["findings"]
    good = {entry["id"] for entry in found if entry["severity"] == "ok"}
    assert ("plugin.loads" in good) == case.loads
    problems = [
        entry for entry in found if entry["severity"] in {"problem", "unknown"} and entry["id"] != "provider.no-cxi"
    ]
    if case.loads:
        assert check.data["path"]["plugin"] == handshake.opened["file"]
        assert "plugin.api" in good
    if not case.finding:
        assert problems == []
        return
    assert problems[0]["id"].startswith(case.finding)
    assert check.data["answer"] == ("no" if problems[0]["severity"] == "problem" else "undecided")
    if case.words is not None:
        assert problems[0]["evidence"][0] == case.words


def test_an_image_that_a_bind_spoils_is_not_called_good(engine: Engine, situation: Situation) -> None:
    """A bindings module sets the variable, and the engine reads it; with --level static, nothing else does."""
    host_libfabric_with_all(situation)
    situation.place()
    assert situation.check(engine).code == ExitCode.GOOD
    file = situation.outside / "broken.so"
    file.write_bytes(b"")
    bind = {f"{engine.prefix}_BIND": f"{file}:{PLUGIN}"}
    check = lumiimg("check", situation.root, "--level", "static", "--json", env=bind)
    assert check.data["answer"] != "no-obstacle"
