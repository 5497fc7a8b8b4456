import os
import psutil, pybind11, pandas
from torch.utils.cpp_extension import BuildExtension
from setuptools import setup
assert os.path.isdir("3rdparty/composable_kernel"), "no composable kernel"
setup(name="aiter", use_scm_version=True, packages=["aiter"], cmdclass={"build_ext": BuildExtension},
    install_requires=["pybind11>=2.13,<3", "pandas", "einops"], setup_requires=["packaging", "psutil", "ninja", "setuptools_scm"])
