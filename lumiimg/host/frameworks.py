"""Libraries that `import torch`, vLLM, SGLang, JAX, TensorFlow and CuPy open in a Python, and whose RCCL they use.

Sources: torch/__init__.py of 2.1 to 2.13 (_rocm_init, _load_global_deps, then torch._C; what its OSError does), torch/
_utils_internal.py, torch/version.py; vllm/utils and sglang/srt/distributed/device_communicators/pynccl_wrapper.py
(find_nccl_library); jax_plugins/xla_rocm*/__init__.py of 0.5 to 0.12; tensorflow/python/pywrap_tensorflow.py of
tensorflow-rocm 2.14; cupy/cuda/nccl.py of 14.2. DT_NEEDED is that of their wheels.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import exported_at, facts_at
from lumiimg.fabric.path import LIBRCCL
from lumiimg.host.import_closure import ImportedFiles, imported_files
from lumiimg.host.job_process import Failure, JobProcess, OpenQuestion, QuestionKind
from lumiimg.host.module_finder import SpecKind
from lumiimg.host.rocm_sdk import Preloads, read_preloads
from lumiimg.host.root_queries import by_version, names_in, read_text
from lumiimg.inventory.components import distribution_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_process import PythonProcess
    from lumiimg.image import RootFileSystem

TORCH_LIBRARIES = ("libtorch_hip.so", "libtorch_cuda.so")
JAX_PLUGIN = "xla_rocm_plugin.so"
_COMPILED = re.compile(r"_C\..*\.?so")
_OWN_MODULE, _GLOBAL_DEPS = re.compile(r"\b_C\b"), "libtorch_global_deps"
_CONSTANT = r"(?m)^{}\s*(?::[^=\n]*)?=\s*([^#\n]*?)\s*(?:#.*)?$"
RCCL_PATH_VARIABLES = {"vllm": "VLLM_NCCL_SO_PATH", "sglang": "SGLANG_NCCL_SO_PATH"}
"""Variable that makes a framework use another RCCL."""
_TENSORFLOW_MODULES = (
    "tensorflow.python.platform._pywrap_cpu_feature_guard",
    "tensorflow.python._pywrap_tensorflow_internal",
)
_CUPY_MODULES = ("cupy_backends.cuda.api.runtime", "cupy_backends.cuda.api.driver", "cupy_backends.cuda.libs.nccl")
_MAX_FILES, _MAX_FILE_BYTES, _MAX_RECORD_BYTES = 200, 1 << 20, 8 << 20
_FOREIGN_NAME = re.compile(rb"\b(?:[NR]CCL|FI|OFI_NCCL)_[A-Z]\w*|\bLD_PRELOAD\b|\blibrccl\b|\blib[nr]ccl-net\w*")
_COMMENT = re.compile(rb"(?m)#.*$")
_RECORDED = re.compile(rb"(?m)^torch/([^/,\"\r\n]+),sha256=([A-Za-z0-9_-]+),")


def framework_processes(python: PythonProcess) -> Iterator[JobProcess]:
    """Yield one process for each framework that may have an RCCL: a Python that imports this framework first.

    A torch without an RCCL counts only where nothing else has one.
    """
    torch = _torch(python)
    others = [*_jax(python), *_tensorflow(python), *_cupy(python)]
    is_torch = torch is not None and torch.built_for is None and torch.package is not None
    if torch is not None and (is_torch or not others):
        yield torch
        if torch.failure is None and torch.built_for is None:
            yield from _serving(python, torch)
    yield from others


def ctypes_process(python: PythonProcess) -> JobProcess:
    """Return the process of a script that opens RCCL by its name, with ctypes."""
    process = _with_ctypes(python, replace(python.plain, asks=LIBRCCL), "ctypes")
    return replace(process, imports="ctypes") if process.failure is not None else process


def _torch(python: PythonProcess) -> JobProcess | None:
    """Return the process of `import torch`; None where that finds nothing, or a folder that is not PyTorch."""
    spec, root, read = python.find_spec("torch"), python.root, imported_files(python, "torch", "ctypes")
    package = spec.locations[0] if spec is not None and spec.locations else None
    process = replace(python.plain, imports="torch", framework="torch", package=package, reads=_files(python, read))
    is_there = package is not None or any(root.for_root().is_dir(f"{folder}/torch") for folder in python.path)
    if read.denied is not None and is_there:
        return _failing(process, f"only root may read {read.denied}", read.denied)
    if spec is None and read.denied is None:
        there = next((f"{folder}/torch" for folder in python.path if "torch" in names_in(root, folder)), None)
        return _failing(process, f"{there} exists, but is not a module that Python accepts", there) if there else None
    if spec is None or read.denied is not None or (spec.kind is SpecKind.SOURCE and not is_there):
        return None  # a job of this image does not import it
    if spec.kind is SpecKind.NAMESPACE:
        is_torch = any(root.exists(f"{package}/lib/{file}") for file in (*TORCH_LIBRARIES, "libtorch_global_deps.so"))
        return _failing(process, f"{package} has no __init__.py: it is an empty module", package) if is_torch else None
    source = python.read(spec)
    if spec.kind in {SpecKind.ZIP, SpecKind.EXTENSION}:
        return _with_question(process, spec, "is imported as torch, but its code is not read")
    is_foreign = spec.kind is SpecKind.BYTECODE and python.finder.is_of_another_python(spec.origin or "")
    if package is None or is_foreign:
        why = "is compiled code of another Python" if is_foreign else "is imported instead, but is not a package"
        return _failing(process, f"{spec.origin} {why}", spec.origin)
    if source is not None and not _OWN_MODULE.search(source):
        return _with_question(process, spec, "is imported as torch, but is not PyTorch")
    if read.missing is not None:
        return _failing(process, f"{package} needs a module {read.missing}, which this Python does not find", package)
    try:
        questions = (*_torch_file_questions(python, package),)
    except BadInputError as error:
        questions = (OpenQuestion(QuestionKind.CODE, error.where or package, error.what),)
    process = replace(process, questions=(*process.questions, *questions))
    return _with_libraries(python, process, package, source)


def _with_libraries(python: PythonProcess, process: JobProcess, package: str, source: str | None) -> JobProcess:
    """Return the process of a PyTorch with the libraries that its import opens."""
    root, init = python.root, python.find_spec("torch._rocm_init")
    first = read_preloads(python, init) if init is not None else Preloads()
    process = replace(
        process,
        opens=(*_ctypes_library(python), *first.paths),
        opens_global=first.paths,
        built_for=built_for(root, package),
        questions=(*process.questions, *first.questions),
    )
    if first.failure is not None:
        return replace(process, failure=first.failure)
    internal = read_text(root, f"{package}/_utils_internal.py") or ""
    is_global = (
        bool(python.variable("TORCH_USE_RTLD_GLOBAL")) or _value(internal, "USE_RTLD_GLOBAL_WITH_LIBTORCH") == "True"
    )
    if not is_global and _GLOBAL_DEPS in (source or _GLOBAL_DEPS) and _value(internal, "USE_GLOBAL_DEPS") != "False":
        deps = f"{package}/lib/{_GLOBAL_DEPS}.so"
        process = replace(process, opens=(*process.opens, deps), opens_global=(*process.opens_global, deps))
    module = python.find_spec("torch._C")
    if module is None:
        others = [name for name in names_in(root, package) if _COMPILED.fullmatch(name)]
        taken = f"this Python loads _C{' and _C'.join(python.finder.suffixes)}"
        what = f"{package} has {others[0]}, but {taken}" if others else f"{package} has no _C: {taken}"
        if others and not root.exists(f"{package}/{others[0]}"):
            what = f"{package}/{others[0]} is a broken link in the image"
        return _failing(process, what, f"{package}/{others[0]}" if others else package)
    if module.kind is SpecKind.NAMESPACE:
        return _failing(process, f"{package}/_C is a folder of PyTorch's sources, without the module", f"{package}/_C")
    if module.kind is not SpecKind.EXTENSION or module.origin is None:
        return _with_question(process, module, "is imported as torch._C, but does not belong to PyTorch")
    exported = exported_at(root, module.origin)
    if exported and "PyInit__C" not in exported:
        return _failing(process, f"{module.origin} defines no PyInit__C", module.origin)
    opens_global = (*process.opens_global, *((module.origin,) if is_global else ()))
    return replace(process, opens=(*process.opens, module.origin), opens_global=opens_global, is_lazy=is_global)


def _failing(process: JobProcess, what: str, where: str | None) -> JobProcess:
    return replace(process, failure=Failure(what, where))


def _with_question(process: JobProcess, spec: ModuleSpec, what: str) -> JobProcess:
    question = OpenQuestion(QuestionKind.CODE, spec.origin or spec.name, what)
    return replace(process, questions=(*process.questions, question))


def _files(python: PythonProcess, read: ImportedFiles) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*python.files, *read.read)))


def _with_ctypes(python: PythonProcess, process: JobProcess, module: str) -> JobProcess:
    """Return a process with the files that the imports of a module and of ctypes read: all frameworks need ctypes."""
    read = imported_files(python, module, "ctypes")
    process = replace(process, reads=_files(python, read), opens=(*_ctypes_library(python), *process.opens))
    if read.missing is not None:
        return _failing(process, f"{module} needs a module {read.missing}, which this Python does not find", None)
    return _failing(process, f"only root may read {read.denied}", read.denied) if read.denied else process


def _ctypes_library(python: PythonProcess) -> tuple[str, ...]:
    """Return the library of module _ctypes, which needs libffi; empty where the module is built in."""
    spec = python.find_spec("_ctypes")
    return (spec.origin,) if spec is not None and spec.kind is SpecKind.EXTENSION and spec.origin is not None else ()


def _value(text: str, name: str) -> str | None:
    """Return the last value that a module assigns to a constant, as source text."""
    found = re.findall(_CONSTANT.format(name), text)
    return found[-1] if found else None


def built_for(root: RootFileSystem, package: str) -> str | None:
    """Return what a torch without an RCCL is built for; None for a ROCm build."""
    version = read_text(root, f"{package}/version.py") or ""
    of = {name: _value(version, name) not in {None, "None"} for name in ("hip", "cuda")}
    has_hip, has_cuda = (root.exists(f"{package}/lib/{file}") for file in TORCH_LIBRARIES)
    if has_hip or of["hip"]:
        return None
    return "CUDA" if has_cuda or of["cuda"] else "CPUs"


def _torch_file_questions(python: PythonProcess, package: str) -> Iterator[OpenQuestion]:
    """Yield the questions that files in torch's own folder leave open.

    These are files that differ from its RECORD (PEP 376), where there is one, and files that name things which RCCL
    reads and PyTorch's own files never name. Raises BadInputError for one that is larger than is read.
    """
    root, (folder, _, _) = python.root, package.rpartition("/")
    recorded: dict[str, set[str]] = {}
    for name in names_in(root, folder):
        distribution = distribution_of(f"{folder}/{name}")
        if distribution is not None and distribution.name == "torch":
            for file, digest in _RECORDED.findall(_content(root, f"{folder}/{name}/RECORD", _MAX_RECORD_BYTES) or b""):
                recorded.setdefault(file.decode("utf-8", "replace"), set()).add(digest.decode())
    own = (file for file in names_in(root, package) if file in recorded or file.endswith(".py"))
    for file in islice(own, _MAX_FILES):
        path, known = f"{package}/{file}", recorded.get(file)
        if (content := _content(root, path, _MAX_FILE_BYTES)) is None:
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if known is not None and digest not in known:
            yield OpenQuestion(QuestionKind.FILES, path, "differs from the file in the package's RECORD")
        elif path.endswith(".py") and (named := _FOREIGN_NAME.search(_COMMENT.sub(b"", content))):
            what = f"mentions {named[0].decode()}, which PyTorch's own file does not"
            yield OpenQuestion(QuestionKind.CODE, path, what)


def _content(root: RootFileSystem, path: str, max_bytes: int) -> bytes | None:
    """Return the content of a file; None where it cannot be read. Raises BadInputError beyond the limit."""
    try:
        return root.read_bytes(path, max_bytes)
    except OSError:
        return None


def _serving(python: PythonProcess, torch: JobProcess) -> Iterator[JobProcess]:
    """Yield the processes that open a second RCCL beside torch's: the one in a variable, else by its usual name."""
    for name, path_variable in RCCL_PATH_VARIABLES.items():
        spec = python.find_spec(name)
        if spec is not None and spec.kind is not SpecKind.NAMESPACE and spec.locations:
            asks = (python.variable(path_variable) or LIBRCCL[0],)
            process = replace(torch, asks=asks, framework=name, package=spec.locations[0])
            if python.finder.code_file(spec) is None:
                process = _failing(replace(process, imports=name), f"only root may read {spec.origin}", spec.origin)
            yield process


def _jax(python: PythonProcess) -> Iterator[JobProcess]:
    """Yield the process of JAX's plugin for ROCm, the newest if there are several."""
    above = python.find_spec("jax_plugins")
    names = {name for place in above.locations for name in names_in(python.root, place)} if above else set()
    for name in sorted(filter(re.compile(r"xla_rocm\d*").fullmatch, names), key=by_version, reverse=True):
        spec = python.find_spec(f"jax_plugins.{name}")
        if spec is None or spec.kind is SpecKind.NAMESPACE or not spec.locations:
            continue
        package = python.root.resolve_where_possible(spec.locations[0])
        if python.root.is_file(plugin := f"{package}/{JAX_PLUGIN}"):
            # XLA opens it with RTLD_LAZY (pjrt_api.cc)
            of_jax = replace(python.plain, opens=(plugin,), is_lazy=True, framework="jax", package=package)
            yield _with_ctypes(python, of_jax, spec.name)
            return


def _tensorflow(python: PythonProcess) -> Iterator[JobProcess]:
    """Yield the process of a TensorFlow whose module, or the library beside it, needs RCCL."""
    yield from _module_processes(python, "tensorflow", "tensorflow", _TENSORFLOW_MODULES, "libtensorflow_cc.so.2")


def _cupy(python: PythonProcess) -> Iterator[JobProcess]:
    """Yield the process of a CuPy, whose module nccl tolerates an RCCL that does not load."""
    found = _module_processes(python, "cupy", "cupy.cuda.nccl", _CUPY_MODULES)
    yield from (replace(process, is_optional=True) for process in found)


def _module_processes(
    python: PythonProcess, framework: str, imports: str, names: tuple[str, ...], library_name: str | None = None
) -> Iterator[JobProcess]:
    """Yield the process of a framework with these extension modules, if the last of them needs RCCL."""
    spec, root = python.find_spec(framework), python.root
    if spec is None or not spec.locations or spec.kind is SpecKind.NAMESPACE:
        return
    package = spec.locations[0]
    modules = [found for found in map(python.find_spec, names) if found and found.kind is SpecKind.EXTENSION]
    opens = tuple(module.origin for module in modules if module.origin)
    own = opens[-1:] if modules and modules[-1].name == names[-1] else ()
    library = f"{package}/{library_name}"
    if not own and library_name and root.is_file(library):
        opens = own = (library,)
    if any(_needs_rccl(root, user) for user in (*own, *([library] if own and library_name else []))):
        process = replace(python.plain, imports=imports, opens=opens, framework=framework, package=package)
        yield _with_ctypes(python, process, spec.name)


def _needs_rccl(root: RootFileSystem, path: str) -> bool:
    facts = facts_at(root, path)
    return facts is not None and not {*LIBRCCL}.isdisjoint(facts.needed)
