#? What the job has in /tmp goes with it, on every node, also where it is cancelled or out of time: a step of its own
#? waits for the SIGTERM that Slurm sends to all steps at the end of a job. It may come at any moment, also before there
#? is a sleep that hears it: so none is longer than Slurm waits before it kills (KillWait, 30 s). Other signals are for
#? the program (sbatch --signal), and the ranks, which have the same one, may take their time
srun --overlap --input=none --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 env over= sh -c '
    trap "over=yes; kill \$! 2>/dev/null" TERM; trap "" HUP INT USR1 USR2
    until [ "$over" ]; do sleep 20 & wait; done
    for _ in 1 2 3; do sleep 1; rm -rf "$@"; done
    ' sh @FOLDERS@ >/dev/null 2>&1 &
