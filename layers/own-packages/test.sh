# What the lock brought is there in its versions, and torch, if there is one, is still ROCm's.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" - <<'END'
import sys
from importlib.metadata import PackageNotFoundError, distributions, version

for line in open("/opt/lumiimg/own-packages.txt", encoding="utf-8"):
    name, _, wanted = line.strip().partition("==")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = "nothing"
    if found != wanted:
        sys.exit(f"own-packages: {name} {wanted} was put in, and {found} is there")
cuda = sorted({found.metadata["Name"] for found in distributions() if (found.metadata["Name"] or "").startswith("nvidia-")})
if cuda:
    sys.exit(f"own-packages: distributions of CUDA are in the image: {', '.join(cuda)}")
END
if grep -q '^torch==' /opt/lumiimg/constraints.txt 2>/dev/null; then "$python" /opt/lumiimg/check_torch.py; fi
