"""The PyTorch of this image is ROCm's, of the ROCm that its wheel is named after, and nothing of CUDA is beside it.

No GPU is needed. Arguments are modules that must load too.
"""

import importlib
import re
import sys
from importlib.metadata import distributions

import torch


def names(versions: str) -> list[str]:
    """Return the parts of a version: 6.2.4 -> 6, 2, 4."""
    return re.findall(r"\d+", versions)


hip = torch.version.hip
if not hip:
    sys.exit(f"torch {torch.__version__} is not built for ROCm (CUDA: {torch.version.cuda})")
# HIP's patch level is longer than ROCm's: 6.2.41134 is that of ROCm 6.2.4. Wheels that are built elsewhere name none.
label = re.search(r"\+rocm(\d+\.\d+(\.\d+)?)", torch.__version__)
if label:
    wanted, have = names(label[1]), names(hip)
    if wanted[:2] != have[:2] or not have[2].startswith("".join(wanted[2:])):
        sys.exit(f"torch {torch.__version__} has HIP {hip}, not that of the ROCm in its name")
cuda = sorted({found.metadata["Name"] for found in distributions() if found.metadata["Name"]})
cuda = [name for name in cuda if name.lower().replace("_", "-").startswith("nvidia-")]
if cuda:
    sys.exit(f"distributions of CUDA are in the image: {', '.join(cuda)}")
for name in sys.argv[1:]:
    importlib.import_module(name)
print(f"torch {torch.__version__}, HIP {hip}{''.join(f', {name}' for name in sys.argv[1:])}")
