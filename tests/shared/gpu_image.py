"""Images with GPU code for chosen GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.shared import fabric_builder
from tests.shared import gpu_builder as gpu
from tests.shared.fabric_builder import RCCL_ALONE, versioned

PACKAGES = "opt/venv/lib/python3.12/site-packages"


def only(*targets: str) -> bytes:
    return gpu.library(gpu.bundle(*gpu.hip(*targets)))


def image(root: Path, files: dict[str, bytes], *, rccl: str | None = "gfx90a", of: str = "") -> Path:
    """Make an image with a net plugin, an RCCL for these GPUs (None: without GPU code), and these files."""
    fabric_builder.image(root)
    libc = root / "lib64/libc.so.6"
    source = RCCL_ALONE + (gpu.fatbin_source(*rccl.split()) if rccl else "")
    (root / "opt/rocm/lib/librccl.so.1").unlink()
    versioned(root / "opt/rocm/lib/librccl.so.1", needs={libc: ()}, source=source)
    versions = {"torch": "2.9.1+rocm6.4", "sglang": "0.5.5", "vllm": "0.12.0"}
    metadata = {f"{PACKAGES}/{name}-{versions[name]}.dist-info/METADATA": b"" for name in of.split()}
    metadata |= {"etc/os-release": b'ID=ubuntu\nVERSION_ID="24.04"\n', "opt/rocm/.info/version": b"6.4.4-1\n"}
    for name, data in {**metadata, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
