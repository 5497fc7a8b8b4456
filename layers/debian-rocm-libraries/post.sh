# The libraries that JAX's plugin for ROCm is linked with; what the base pins decides their release.
# shellcheck source=layers/lib/packages.sh
. "$LAYER_FILES/packages.sh"

apt_get update
apt_get install -y --no-install-recommends libhipblas3 libhipblaslt1 libhipfft0 libhipsolver1 libhipsparse4 libmiopen1 \
    librocblas5 libroctx64-4 >/dev/null
# Debian has the annotations of roctracer (libroctx64), and not the tracer, which the plugin of JAX is linked with.
add_packages gcc libc6-dev
library=/usr/lib/x86_64-linux-gnu/libroctracer64.so.4
gcc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libroctracer64.so.4 \
    -Wl,--version-script="$LAYER_FILES/roctracer_standin.map" -o "$library" "$LAYER_FILES/roctracer_standin.c"
ldconfig
remove_packages "$library"
