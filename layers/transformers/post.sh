# Install the wheels of the lock: the three in the releases that belong together, and what they require. The torch of the
# image stays.
layer=transformers
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

use_torch
install_wheels
finish_python
"$python" /opt/lumiimg/check_torch.py transformers accelerate peft
