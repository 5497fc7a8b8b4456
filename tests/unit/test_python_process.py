"""Which torch an `import` loads, which RCCL that opens, and what files leave open, each compared with a good image."""

from __future__ import annotations

import base64
import hashlib
import marshal
import zipfile
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.answer import decide
from lumiimg.check.context import ImageInContext
from lumiimg.check.pipeline import final_findings
from lumiimg.check.static.files import check_files
from lumiimg.core.findings import Answer, Level, Severity
from lumiimg.host.container_view import as_engine_variables
from lumiimg.host.jobs import jobs_of
from lumiimg.image import open_image
from tests.shared.elf_builder import library, runpath
from tests.shared.fabric_builder import RCCL, bundled
from tests.shared.python_image import CALLS_RCCL, SITE, TORCH, environment, python, torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.core.findings import Finding

    Plant = Callable[[Path], object]

PACKAGES = f"usr/{SITE}"
MODULE = "_C.cpython-312-x86_64-linux-gnu.so"
OF_TORCH, OF_ROCM = f"/{PACKAGES}/torch/lib/librccl.so", "/opt/rocm/lib/librccl.so.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A good image: a torch with its own RCCL, a plugin and a libfabric with cxi."""
    root = bundled(tmp_path / "image")
    environment(root, PATH="/usr/bin", PYTHONPATH="/opt/src", LD_LIBRARY_PATH="")
    python(root, "usr")
    torch(root, "usr")
    library(root / "usr/lib64/libhsa-runtime64.so", source="int hsa_init;")
    return root


class Files:
    """The result of a check of the files of an image."""

    def __init__(self, root: Path, **variables: str) -> None:
        with open_image(root) as image:
            context = ImageInContext(root, image, image, as_engine_variables(variables))
            files = check_files(context)
            found = final_findings(context, files.static.findings)
            self.answer = decide(found, files.static.path, level=Level.STATIC, level_was_asked_for=True)
            self.rccl, self.job = files.static.path.rccl, files.static.job
            self.against = {each.id: each for each in found if each.severity in {Severity.PROBLEM, Severity.UNKNOWN}}

    def only(self) -> Finding:
        assert len(self.against) == 1, self.against
        return next(iter(self.against.values()))


def put(root: Path, path: str, text: str | bytes = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


# -- the torch that is imported --


def renamed(old: str, new: str) -> Plant:
    return lambda root: (root / PACKAGES / "torch" / old).rename(root / PACKAGES / "torch" / new)


def compiled(root: Path, *, magic: int) -> None:
    (root / PACKAGES / "torch/__init__.py").unlink()
    head = magic.to_bytes(2, "little") + b"\r\n" + bytes(12)
    (root / PACKAGES / "torch/__init__.pyc").write_bytes(head + marshal.dumps(compile(TORCH, "torch", "exec")))


def without(*names: str) -> Plant:
    def plant(root: Path) -> None:
        for name in names:
            (root / PACKAGES / "torch" / name).unlink()

    return plant


def written(path: str, text: str = "") -> Plant:
    return lambda root: put(root, path, text)


def zipped(root: Path) -> None:
    put(root, "opt/src")
    (root / "opt/src").unlink()
    with zipfile.ZipFile(root / "opt/src", "w") as archive:
        archive.writestr("torch/__init__.py", TORCH)


BROKEN: dict[str, tuple[Plant, str, str]] = {
    "a module in its place": (written("opt/src/torch.py", "version = 1"), "program.load", "/opt/src/torch.py is imported"),
    "its sources": (
        lambda root: (put(root, "opt/src/torch/__init__.py", TORCH), put(root, "opt/src/torch/_C/__init__.pyi")),
        "program.load",
        "/opt/src/torch/_C is a folder of PyTorch's sources",
    ),
    "no __init__.py": (without("__init__.py"), "program.load", "torch has no __init__.py"),
    "no _C": (without(MODULE), "program.load", "torch has no _C: this Python loads _C.cpython-312-x86_64-linux-gnu.so"),
    "a _C of another Python": (renamed(MODULE, "_C.cpython-311-x86_64-linux-gnu.so"), "program.load", "has _C.cpython-311-"),
    "a folder _C alone": (
        lambda root: (without(MODULE)(root), put(root, f"{PACKAGES}/torch/_C/__init__.pyi")),
        "program.load",
        "_C is a folder of PyTorch's sources",
    ),
    "no libtorch_global_deps.so": (without("lib/libtorch_global_deps.so"), "program.load", "`import torch` of /usr/bin/python fails"),
    "built for CPUs": (without("lib/libtorch_hip.so"), "program.cpu", "built for CPUs only: no import loads an RCCL"),
    "a file of its name": (
        lambda root: ((root / PACKAGES / "torch").rename(root / "gone"), put(root, f"{PACKAGES}/torch")),
        "program.load",
        "/torch exists, but is not a module",
    ),
    "a _C without its entry": (
        lambda root: library(root / PACKAGES / "torch" / MODULE, source="int PyInit_other;"),
        "program.load",
        f"{MODULE} defines no PyInit__C",
    ),
    "without a module that it needs": (
        written(f"{PACKAGES}/torch/__init__.py", "from typing_extensions import (\n    ParamSpec,\n)\n" + TORCH),
        "program.load",
        "torch needs a module typing_extensions, which this Python does not find",
    ),
    "without a module that a part of it needs": (
        lambda root: (
            put(root, f"{PACKAGES}/torch/__init__.py", "from torch import fx as fx\n" + TORCH),
            put(root, f"{PACKAGES}/torch/fx/__init__.py", "import sympy.core\n"),
        ),
        "program.load",
        "torch needs a module sympy, which this Python does not find",
    ),
    "bytecode of another Python alone": (
        lambda root: compiled(root, magic=3495),
        "program.load",
        "torch/__init__.pyc is compiled code of another Python",
    ),
    "a Python without encodings": (
        lambda root: (root / "usr/lib/python3.12/encodings/__init__.py").unlink(),
        "program.load",
        "does not find module encodings",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_torch_that_cannot_be_imported_is_a_no_that_names_the_file(name: str, root: Path) -> None:
    plant, identity, words = BROKEN[name]
    plant(root)
    if name == "built for CPUs":
        library(root / PACKAGES / "torch" / MODULE, source="int PyInit__C;")
    report = Files(root)
    assert (report.answer, *report.against) == (Answer.NO, identity)
    assert words in report.only().summary


DECOYS: dict[str, Plant] = {
    "nothing": lambda _: None,
    "a module that it needs is there": lambda root: (
        put(root, f"{PACKAGES}/torch/__init__.py", "import typing_extensions\n" + TORCH),
        put(root, f"{PACKAGES}/typing_extensions.py"),
    ),
    "a module that it tries": written(
        f"{PACKAGES}/torch/__init__.py", "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n" + TORCH
    ),
    "a module that it makes itself": written(
        f"{PACKAGES}/torch/__init__.py", "import sys\nsys.modules['made'] = sys\nimport made\n" + TORCH
    ),
    "a text that looks like an import": written(f"{PACKAGES}/torch/__init__.py", '"""\nimport this_not\n"""\n' + TORCH),
    "a name that it binds itself, and no module of it": lambda root: (
        put(root, f"{PACKAGES}/torch/__init__.py", "version = 1\nfrom torch import version\n" + TORCH),
        put(root, f"{PACKAGES}/torch/version.py", "import not_here\n"),
    ),
    "a folder of that name in front": written("opt/src/torch/notes.txt"),
    "a folder _C beside the module": written(f"{PACKAGES}/torch/_C/__init__.pyi"),
    "a _C of another Python beside its own": written(f"{PACKAGES}/torch/_C.cpython-311-x86_64-linux-gnu.so"),
    "a _C of the stable ABI": renamed(MODULE, "_C.abi3.so"),
    "a _C without a tag": renamed(MODULE, "_C.so"),
    "bytecode alone": lambda root: compiled(root, magic=3531),
    "a torch.py behind it": written(f"{PACKAGES}/torch.py"),
    "no libtorch_global_deps.so where it is not opened": lambda root: (
        without("lib/libtorch_global_deps.so")(root),
        put(root, f"{PACKAGES}/torch/_utils_internal.py", "USE_GLOBAL_DEPS = True\nUSE_GLOBAL_DEPS: bool = False  # here\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECOYS)
def test_what_looks_like_it_and_is_taken_by_python_is_a_yes(name: str, root: Path) -> None:
    DECOYS[name](root)
    report = Files(root)
    assert (report.answer, report.against, report.rccl) == (Answer.NO_OBSTACLE, {}, OF_TORCH)


def test_a_variable_has_torch_opened_for_all_and_without_its_global_libraries(root: Path) -> None:
    without("lib/libtorch_global_deps.so")(root)
    report = Files(root, TORCH_USE_RTLD_GLOBAL="1")
    assert (report.answer, report.rccl) == (Answer.NO_OBSTACLE, OF_TORCH)
    assert report.job is not None
    assert report.job.is_lazy
    assert report.job.opens == report.job.opens_global == (f"/{PACKAGES}/torch/{MODULE}",)


def test_a_torch_whose_code_is_not_read_is_an_open_question(root: Path) -> None:
    zipped(root)
    report = Files(root)
    assert (report.answer, *report.against) == (Answer.UNDECIDED, "python.code", "rccl.absent")
    assert report.against["python.code"].evidence == (
        "/opt/src/torch/__init__.py is imported as torch, but its code is not read",
    )
    (root / "opt/src").unlink()
    put(root, "opt/src/torch/__init__.py", "import another")
    assert Files(root).against["python.code"].evidence == (
        "/opt/src/torch/__init__.py is imported as torch, but is not PyTorch",
    )


# -- its own files --


def record(root: Path, **files: str) -> None:
    lines = [f"torch/{name.replace('__py', '.py')},sha256={text},1" for name, text in files.items()]
    put(root, f"{PACKAGES}/torch-2.9.0.dist-info/RECORD", "\r\n".join([*lines, "torch/lib/librccl.so,sha256=other,1"]))


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def test_files_of_torch_that_are_not_those_of_its_record_are_named(root: Path) -> None:
    put(root, f"{PACKAGES}/torch/functional.py", "own = 1")
    record(root, __init____py=digest(TORCH), functional__py=digest("own = 1"), gone__py=digest(""))
    assert Files(root).answer is Answer.NO_OBSTACLE
    record(root, __init____py=digest(TORCH), functional__py=digest("another"))
    report = Files(root)
    assert (report.answer, *report.against) == (Answer.UNDECIDED, "python.files")
    assert report.only().evidence == (f"/{PACKAGES}/torch/functional.py differs from the file in the package's RECORD",)


def test_a_file_of_torch_that_names_what_rccl_reads_is_an_open_question_whoever_recorded_it(root: Path) -> None:
    put(root, f"{PACKAGES}/torch/functional.py", "# NCCL_NET is for RCCL\n")
    assert Files(root).answer is Answer.NO_OBSTACLE
    put(root, f"{PACKAGES}/torch/functional.py", text := "import os\nos.environ.setdefault('NCCL_NET', 'Socket')\n")
    record(root, __init____py=digest(TORCH), functional__py=digest(text))
    report = Files(root)
    assert (report.answer, *report.against) == (Answer.UNDECIDED, "python.code")
    assert report.only().evidence == (
        f"/{PACKAGES}/torch/functional.py mentions NCCL_NET, which PyTorch's own file does not",
    )


def test_a_file_of_torch_or_a_record_beyond_its_limit_is_an_open_question(root: Path) -> None:
    put(root, f"{PACKAGES}/torch/functional.py", "own = 1")
    record(root, functional__py=digest("own = 1"))
    for name, size in (("torch/functional.py", 1 << 20), ("torch-2.9.0.dist-info/RECORD", 8 << 20)):
        path = root / PACKAGES / name
        text = path.read_text()
        path.write_text(text.ljust(size))
        assert Files(root).answer is (Answer.NO_OBSTACLE if name.endswith("RECORD") else Answer.UNDECIDED), name
        path.write_text(text.ljust(size + 1))
        report = Files(root)
        assert (report.answer, *report.against) == (Answer.UNDECIDED, "python.code"), name
        path.write_text(text)


# -- other owners of an RCCL --


def for_cpus(root: Path) -> None:
    library(root / PACKAGES / "torch" / MODULE, source="int PyInit__C;")
    without("lib/libtorch_hip.so", "lib/librccl.so")(root)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")


def framework(module: str, *inits: str) -> Plant:
    def plant(root: Path) -> None:
        rccl = root.with_name("parts") / "librccl.so.1"
        library(rccl, source=RCCL)
        for init in inits:
            put(root, f"{PACKAGES}/{init}/__init__.py")
        library(root / PACKAGES / module, rccl, source="int it;")

    return plant


OTHERS = {
    "jax": framework("jax_plugins/xla_rocm7/xla_rocm_plugin.so", "jax_plugins/xla_rocm7"),
    "tensorflow": framework("tensorflow/python/_pywrap_tensorflow_internal.so", "tensorflow", "tensorflow/python"
    ),
    "cupy": framework("cupy_backends/cuda/libs/nccl.cpython-312-x86_64-linux-gnu.so", "cupy", *("cupy_backends", "cupy_backends/cuda", "cupy_backends/cuda/libs")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_beside_a_torch_for_cpus_the_framework_that_needs_rccl_counts(name: str, root: Path) -> None:
    for_cpus(root)
    assert Files(root).only().id == "program.cpu"
    OTHERS[name](root)
    report = Files(root)
    assert (report.answer, report.rccl, report.job and report.job.framework) == (Answer.NO_OBSTACLE, OF_ROCM, name)


def test_cupy_counts_beside_a_torch_of_rocm_where_it_finds_an_rccl(root: Path) -> None:
    OTHERS["cupy"](root)
    with open_image(root) as image:
        assert [job.framework for job in jobs_of(image, {}).processes] == ["torch", "cupy"]
    report = Files(root)  # its librccl.so.1 is in no folder where it looks
    assert (report.answer, report.rccl) == (Answer.NO_OBSTACLE, OF_TORCH)
    report = Files(root, LD_LIBRARY_PATH="/opt/rocm/lib", NCCL_NET_PLUGIN="none")
    assert (report.answer, report.job and report.job.framework) == (Answer.NO, "torch")


# -- what runs before --


def test_what_code_at_the_start_sets_counts_and_is_named(root: Path) -> None:
    code = put(root, f"{PACKAGES}/sitecustomize.py", "import os\nos.environ['NCCL_NET'] = 'Socket'\n")
    report = Files(root, NCCL_NET="AWS Libfabric")
    assert (report.answer, *report.against) == (Answer.NO, "network.forced")
    assert f"NCCL_NET=Socket in /{PACKAGES}/sitecustomize.py" in report.only().summary
    assert report.only().remedy[0].text == f"take NCCL_NET out of the image's /{PACKAGES}/sitecustomize.py"
    code.write_text("import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\n")
    assert Files(root).answer is Answer.NO_OBSTACLE


def test_a_folder_that_code_puts_in_front_is_where_torch_is_looked_for(root: Path) -> None:
    put(root, "opt/other/torch.py", "own = 1")
    put(root, f"{PACKAGES}/own.pth", "import sys; sys.path.insert(0, '/opt/other')\n")
    assert "/opt/other/torch.py is imported instead" in Files(root).only().summary


def test_code_that_is_not_followed_leaves_the_answer_open_and_what_hangs_on_it(root: Path) -> None:
    put(root, f"{PACKAGES}/sitecustomize.py", "exec(open('/etc/own').read())\n")
    report = Files(root)
    assert (report.answer, *report.against) == (Answer.UNDECIDED, "python.code")
    assert f"/{PACKAGES}/sitecustomize.py" in report.only().summary
    assert str(report.only().remedy[0].command).endswith(" --level probe")
    without("__init__.py")(root)
    report = Files(root)
    assert (report.answer, *report.against) == (Answer.UNDECIDED, "python.code", "program.load")


def test_folders_behind_a_line_that_may_fail_are_in_question(root: Path) -> None:
    """After an exception, Python skips the rest of a `.pth` file."""
    put(root, "opt/other/torch.py", "own = 1")
    put(root, f"{PACKAGES}/own.pth", "import os; 1/0\n/opt/other\n")
    assert f"/{PACKAGES}/own.pth may end with an exception and not add its other folders" in Files(root).only().summary
    put(root, f"{PACKAGES}/own.pth", "/opt/other\nimport os; 1/0\n")
    assert Files(root).answer is Answer.NO_OBSTACLE


def test_a_variable_of_the_loader_that_code_sets_counts_for_what_python_starts(root: Path) -> None:
    put(root, f"{PACKAGES}/sitecustomize.py", "import os\nos.environ['LD_LIBRARY_PATH'] = '/opt/another'\n")
    assert "sets LD_LIBRARY_PATH for the processes that Python then starts" in Files(root).only().summary


# -- wheels of TheRock --

ROCM_INIT = (
    "def initialize():\n  import rocm_sdk\n  rocm_sdk.initialize_process(preload_shortnames=['amdhip64', 'rccl'])\n"
)
DISTRIBUTION = """\
PackageEntry("core", "rocm-sdk-core", pure_py_package_name="rocm_sdk_core")
PackageEntry("libraries", "rocm-sdk-libraries-{target_family}", pure_py_package_name="rocm_sdk_libraries")
LibraryEntry("amdhip64", "core", "libamdhip64.so*", "amdhip64*.dll")
LibraryEntry("rccl", "libraries", "librccl.so*", "", deps=["amdhip64"])
AVAILABLE_TARGET_FAMILIES: list[str] = []
DEFAULT_TARGET_FAMILY: str = "DEFAULT"
DEFAULT_TARGET_FAMILY = "gfx94X-dcgpu"
AVAILABLE_TARGET_FAMILIES.append("gfx94X-dcgpu")
AVAILABLE_TARGET_FAMILIES.append("gfx90a")
"""


def therock(root: Path, *families: str) -> None:
    put(root, f"{PACKAGES}/torch/_rocm_init.py", ROCM_INIT)
    put(root, f"{PACKAGES}/rocm_sdk/__init__.py")
    put(root, f"{PACKAGES}/rocm_sdk/_dist_info.py", DISTRIBUTION)
    put(root, f"{PACKAGES}/_rocm_sdk_core/__init__.py")
    library(root / PACKAGES / "_rocm_sdk_core/lib/libamdhip64.so.7", source="int hip;")
    for family in families:
        place = root / PACKAGES / f"_rocm_sdk_libraries_{family.replace('-', '_')}"
        put(place, "__init__.py")
        library(place / "lib/librccl.so.1", source=RCCL)
    hip = root / PACKAGES / "torch/lib/libtorch_hip.so"
    rccl = library(root.with_name("parts") / "librccl.so.1", source=RCCL)
    library(hip, *runpath("$ORIGIN"), rccl, source=CALLS_RCCL)


@pytest.mark.parametrize(
    ("families", "variable", "answer", "of"),
    [
        (("gfx90a",), None, Answer.NO_OBSTACLE, "gfx90a"),
        (("gfx90a",), "gfx90a", Answer.NO_OBSTACLE, "gfx90a"),
        # the GPU of the node decides
        (("gfx90a", "gfx94X-dcgpu"), None, Answer.UNDECIDED, "gfx94X_dcgpu"),
        (("gfx90a", "gfx94X-dcgpu"), "gfx90a", Answer.NO_OBSTACLE, "gfx90a"),
        # its package is not installed; rocm_sdk does not know it
        (("gfx90a",), "gfx94X-dcgpu", Answer.NO, None),
        (("gfx90a",), "gfx906", Answer.NO, None),
    ],
)
def test_the_libraries_of_therock_are_those_of_the_family_that_is_asked_for(
    families: tuple[str, ...], variable: str | None, answer: Answer, of: str | None, root: Path
) -> None:
    therock(root, *families)
    report = Files(root, **({"ROCM_SDK_TARGET_FAMILY": variable} if variable else {}))
    assert (report.answer, report.rccl) == (
        answer,
        f"/{PACKAGES}/_rocm_sdk_libraries_{of}/lib/librccl.so.1" if of else None,
    ), report.against


def test_libraries_that_rocm_init_names_in_another_way_are_an_open_question(root: Path) -> None:
    therock(root, "gfx90a")
    for text in (
        ROCM_INIT.replace("['amdhip64', 'rccl']", "NAMES") + "NAMES = ['rccl']\n",
        ROCM_INIT.replace("['amdhip64', 'rccl']", "('amdhip64', 'rccl')"),
    ):
        put(root, f"{PACKAGES}/torch/_rocm_init.py", text)
        report = Files(root)
        assert (report.answer, "python.code" in report.against) == (Answer.UNDECIDED, True)
    put(root, f"{PACKAGES}/torch/_rocm_init.py", ROCM_INIT)
    assert Files(root).answer is Answer.NO_OBSTACLE


def test_a_torch_of_therock_without_rocm_sdk_is_not_imported(root: Path) -> None:
    therock(root, "gfx90a")
    (root / PACKAGES / "rocm_sdk").rename(root / PACKAGES / "gone")
    assert "it imports rocm_sdk, which is not in any of its module folders" in Files(root).only().summary
