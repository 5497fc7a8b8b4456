# It loads without a GPU, its compiled part too, and torch is still ROCm's.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" /opt/lumiimg/check_torch.py vllm vllm._C
