# pip's own word on the whole environment, then ours on torch, triton and CUDA.
python=/opt/venv/bin/python
[ -x "$python" ] || python=$(command -v python3)
"$python" -m pip check
"$python" - "$TORCH" <<'EOF'
import re
import sys
from importlib.metadata import distributions

has = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version for one in distributions() if one.metadata["Name"]}
wanted = sys.argv[1]
if wanted and has.get("torch") != wanted:
    sys.exit(f"torch is {has.get('torch')}, and not {wanted} as it was locked")
cuda = [name for name in has if re.match(r"(nvidia|cuda|cupy-cuda)(-|$)", name)]
if cuda:
    sys.exit(f"CUDA is in the image: {', '.join(cuda)}")
local = has.get("torch", "").partition("+")[2]  # a triton that came with a torch is called like that
if "torch" in has and not has.get("triton", "+rocm").endswith(("+rocm", f"+{local}", f".{local}") if local else "+rocm"):
    sys.exit(f"triton {has['triton']} is not ROCm's")
print(f"{len(has)} distributions, torch {has.get('torch')}, triton {has.get('triton')}")
EOF
