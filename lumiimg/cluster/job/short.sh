#!/bin/bash
@HEAD@
@DIRECTIVES@

@MODULES@
set -euo pipefail
export LUMIIMG_JOB="$PWD/lumiimg-$SLURM_JOB_ID"  # for what each rank prints of its network
if [ -L "$LUMIIMG_JOB" ] || ! mkdir -p "$LUMIIMG_JOB/nccl" || [ ! -O "$LUMIIMG_JOB" ] || ! chmod go-w "$LUMIIMG_JOB"; then echo "is somebody else's: $LUMIIMG_JOB" >&2; exit 2; fi
trap 'lumiimg log "$LUMIIMG_JOB/nccl" || true' EXIT  # which network it used
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 5000 * 2)) SLURM_EXPORT_ENV=ALL
@VARIABLES@

@REASONS@
@WRITTEN@
srun @STEP@ \
    @ENGINE@ exec @BINDS@ @IMAGE@ sh -c '
@RANK@
        exec "$@"' sh \
    @COMMAND@
