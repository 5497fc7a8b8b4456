# It loads the MPI of the image, and one process is a world of its own.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" - <<'EOF'
from mpi4py import MPI

assert MPI.COMM_WORLD.Get_size() == 1
print(MPI.Get_library_version().splitlines()[0])
EOF
