# What the job has in /tmp goes with it, on every node, also where it is cancelled or out of time: a
# step of its own waits for the SIGTERM that Slurm sends to all steps at the end of a job
# shellcheck disable=SC2016
srun --overlap --input=none --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '
    trap : TERM
    # signals that are for the program (sbatch --signal)
    trap "" HUP INT USR1 USR2
    sleep infinity &
    wait
    kill $!
    # the ranks have the same signal, and may take their time
    for _ in 1 2 3; do
        sleep 1
        rm -rf "$@"
    done' sh @FOLDERS@ >/dev/null 2>&1 &

