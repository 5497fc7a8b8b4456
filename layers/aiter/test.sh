# It is installed, and torch is still ROCm's. Loading it asks the GPU for its architecture, so that is left to a node.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" /opt/lumiimg/check_torch.py
"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("aiter") is None)'
