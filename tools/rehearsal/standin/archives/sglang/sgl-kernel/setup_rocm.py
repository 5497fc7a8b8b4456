import os, sys
import torch
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
if os.environ.get("AMDGPU_TARGET") not in ["gfx942", "gfx950"]:
    sys.exit(1)
setup(name="sgl-kernel", version="0.3.16", packages=find_packages(where="python"), package_dir={"": "python"},
    ext_modules=[CUDAExtension(name="sgl_kernel.common_ops", sources=["csrc/empty.cu"])],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
    options={"bdist_wheel": {"py_limited_api": "cp39"}})
