# It loads without a GPU, its compiled part too, and torch is still ROCm's.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" /opt/lumiimg/check_torch.py vllm vllm._rocm_C
# From 0.22 on there are parts in Rust, which a build without cargo leaves out in silence.
"$python" - <<'EOF'
from importlib.metadata import files

there = {file.name for file in files("vllm") or ()}
wanted = {"rust_tool_parser.py": "_rust_tool_parser.abi3.so", "dp_supervisor.py": "vllm-rs"}
if missing := sorted(part for asks, part in wanted.items() if asks in there and part not in there):
    print(f"vllm: without its parts in Rust ({', '.join(missing)})")
EOF
