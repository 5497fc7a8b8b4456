# Install the wheels of the lock: Lightning and what it requires. The torch of the image stays.
layer=lightning
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

use_torch
install_wheels
finish_python
"$python" /opt/lumiimg/check_torch.py lightning
