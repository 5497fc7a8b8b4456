import sys
import torch
from setuptools import setup, find_packages
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
extensions = []
if "--cpp_ext" in sys.argv:
    sys.argv.remove("--cpp_ext")
    extensions.append(CppExtension("apex_C", ["empty.cpp"]))
if "--cuda_ext" in sys.argv:
    sys.argv.remove("--cuda_ext")
    extensions.append(CUDAExtension("amp_C", ["empty.cpp"]))
required = [line.strip() for line in open("requirements.txt") if line.strip()]
setup(name="apex", version="@VERSION@", packages=["apex"], ext_modules=extensions,
    cmdclass={"build_ext": BuildExtension} if extensions else {}, install_requires=required)
