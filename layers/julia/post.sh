# Unpack Julia and write the preferences that have MPI.jl take the image's MPI, where the image has one.
layer=julia
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"

unpack "$SOURCE_JULIA" julia
mkdir -p "$PREFIX" /opt/lumiimg/julia
cp -a julia/. "$PREFIX/"
# The id is MPIPreferences.jl's own: preferences count for a package that the project beside them names.
cat >/opt/lumiimg/julia/Project.toml <<'EOF'
[extras]
MPIPreferences = "3da0fdf6-3ccc-4f1b-acd9-58baa6c99267"
EOF
# The MPI of the image is where mpicc is; of a base's own environment not every engine lets a build know.
export PATH=$PATH:/opt/mpich/bin
mpicc=$(command -v mpicc || true)
library=${mpicc%/bin/mpicc}/lib/libmpi.so.12
if [ ! -e "$library" ]; then
    known=$(ldconfig -p | sed -n 's|^[[:space:]]*libmpi\.so\.12 .*=> ||p')
    library=${known%%$'\n'*}
fi
if [ -n "$library" ]; then
    cat >/opt/lumiimg/julia/LocalPreferences.toml <<EOF
[MPIPreferences]
_format = "1.0"
abi = "MPICH"
binary = "system"
libmpi = "$library"
mpiexec = "mpiexec"
preloads = []
cclibs = []
EOF
else
    echo "julia: no MPI of MPICH's kind (libmpi.so.12) in this image, so MPI.jl takes one of its own, which knows nothing of Slingshot"
fi
"$PREFIX/bin/julia" --startup-file=no -e 'println("Julia ", VERSION)'
