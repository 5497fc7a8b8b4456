#? In the container, once per node: variables, then torchrun, which starts the ranks
@SETTINGS@
#? The nodes of a job are fixed, so each gets its number (rendezvous `static`): ranks follow the scheduler's order, and
#? no node guesses from its own name whether it is the first, as with c10d (pytorch#73656)
exec python3 -m torch.distributed.run --nnodes="$@NODES@" --node_rank="$@NODE@" --nproc_per_node=@GPUS@ \
    --rdzv_backend=static --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" --no_python @RANK@"$@"
