# What the job has in /tmp goes with it, on every node, also where it is cancelled or out of time: a
# step of its own waits for the SIGTERM that Slurm sends to all steps at the end of a job
# shellcheck disable=SC2016
srun --overlap --input=none --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '
    over=
    # it may come at any moment, also before there is anything to wait for, or a sleep that hears it:
    # so no sleep is longer than Slurm waits before it kills (KillWait, 30 s)
    trap "over=yes; kill \$! 2>/dev/null" TERM
    # signals that are for the program (sbatch --signal)
    trap "" HUP INT USR1 USR2
    until [ -n "$over" ]; do
        sleep 20 &
        wait
    done
    # the ranks have the same signal, and may take their time
    for _ in 1 2 3; do
        sleep 1
        rm -rf "$@"
    done' sh @FOLDERS@ >/dev/null 2>&1 &

