# It is installed with its kernels, and torch is still ROCm's. Loading the kernels asks the GPU, so that is left to a
# node.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" /opt/lumiimg/check_torch.py
"$python" -c 'import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, ("sglang", "sgl_kernel")))'
