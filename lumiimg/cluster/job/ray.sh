#? In the container, once per node: a Ray cluster of all nodes, the program on the first
@SETTINGS@
#? Ray and vLLM want addresses, not names: the node's own, by the name that the scheduler has for it
address() { python3 -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]))' "$1"; }
VLLM_HOST_IP=$(address "$@NAME@")
export VLLM_HOST_IP
head=$(address "$MASTER_ADDR"):$MASTER_PORT
ended=$LUMIIMG_JOB/ended
#? in the foreground of a process of its own: `ray stop` would end those of other jobs, too
set_up() { exec ray start --block --disable-usage-stats --node-ip-address="$VLLM_HOST_IP" --num-cpus="$(nproc)" --num-gpus=@GPUS@ "$@"; }

if [ "$@NODE@" -ne 0 ]; then
    #? lend the GPUs to the first node until its program has ended; ask again while Ray is not up
    #? there
    until [ -e "$ended" ]; do
        set_up --address="$head" &
        ray=$!
        while [ ! -e "$ended" ] && kill -0 "$ray" 2>/dev/null; do sleep 2; done
    done
    kill "$ray" 2>/dev/null
    wait "$ray"
    exit 0
fi

trap 'touch "$ended"' EXIT
#? clients are served on a port of the job's own: that of another job's Ray on this node would end
#? ours; a Ray that serves none (no grpc) refuses a port
clients=
if python3 -c 'import grpc' 2>/dev/null; then clients=$((MASTER_PORT + 1)); fi
set_up --head --port="$MASTER_PORT" ${clients:+--ray-client-server-port="$clients"} \
    --temp-dir="@RAY@" --include-dashboard=false &
ray=$!
#? all nodes are there before the program starts; where Ray does not come up, it never starts. A connection
#? first: Ray itself asks for minutes where nothing answers
are_here='import socket, sys; socket.create_connection(sys.argv[1].split(":"), 5).close()
import ray; ray.init(address=sys.argv[1], log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]))'
tries=0
until python3 -c "$are_here" "$head" "$@NODES@" 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -ge 300 ] || ! kill -0 "$ray"; then echo "Ray is not up on all nodes" >&2; exit 1; fi
    sleep 1
done
export RAY_ADDRESS="$head"
status=0
"$@" || status=$?
touch "$ended"
kill "$ray"
wait "$ray"
exit "$status"
