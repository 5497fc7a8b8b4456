# Compile mpi4py with the image's mpicc. A wheel of mpi4py would look for whatever MPI it finds when it is loaded.
layer=mpi4py
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

use_environment
install_wheels
# The MPI of the image is where mpicc is; of a base's own environment not every engine lets a build know.
export PATH=$PATH:/opt/mpich/bin
command -v mpicc >/dev/null || fail "no mpicc: the MPI of this image has no compiler wrapper on PATH"
need_compilers
need_python_headers
unpack "$SOURCE_MPI4PY" mpi4py
MPICC=$(command -v mpicc)
export MPICC
build_wheel mpi4py
finish_python mpi4py
