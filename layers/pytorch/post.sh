# Install the wheels of torch and what belongs to it, and pin them for whatever comes after.
layer=pytorch
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

use_venv
keep_compiler
install_wheels
write_constraints
finish_python
"$python" /opt/lumiimg/check_torch.py torchvision torchaudio
