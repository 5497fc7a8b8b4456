"""A stand-in for torch.utils.cpp_extension: each extension is compiled, but from an empty module in place of its sources."""

import os
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

ROCM_HOME = os.environ.get("ROCM_PATH", "/opt/rocm")
CUDA_HOME = None
IS_HIP_EXTENSION = True

_EMPTY = """\
#include <Python.h>
static struct PyModuleDef about = {{PyModuleDef_HEAD_INIT, "{name}", "a stand-in", -1, NULL, NULL, NULL, NULL, NULL}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&about); }}
"""


def CppExtension(name, sources, **options):
    return Extension(name, sources)


def CUDAExtension(name, sources, **options):
    made = Extension(name, sources)
    made.for_gpu = True
    return made


class BuildExtension(build_ext):
    """Asks hipcc for what is for the GPU, the C compiler for the rest; a source that is not there ends the build."""

    def __init__(self, *args, **options):
        super().__init__(*args)

    @classmethod
    def with_options(cls, **given):
        class WithOptions(cls):
            def __init__(self, *args, **options):
                super().__init__(*args, **{**options, **given})

        return WithOptions

    def build_extension(self, extension):
        missing = [source for source in extension.sources if not os.path.exists(source)]
        if missing:
            raise FileNotFoundError(f"{extension.name} has sources that are not there: {missing[:3]}")
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        empty = Path(self.build_temp) / f"{extension.name}.c"
        empty.parent.mkdir(parents=True, exist_ok=True)
        empty.write_text(_EMPTY.format(name=extension.name.rpartition(".")[2]))
        compiler = f"{ROCM_HOME}/bin/hipcc" if getattr(extension, "for_gpu", False) else "cc"
        include = sysconfig.get_path("include")
        subprocess.run([compiler, "-shared", "-fPIC", f"-I{include}", "-o", str(target), str(empty)], check=True)


def __getattr__(name):
    from torch.standin import _Value

    if name.startswith("__"):
        raise AttributeError(name)
    return _Value()
