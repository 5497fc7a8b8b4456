#? In the container, once per node: a Ray cluster of all nodes, the program on the first
@SETTINGS@
#? Ray and vLLM need addresses, not names: the node's own address, from the scheduler's name for it
address() { python3 -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]))' "$1"; }
VLLM_HOST_IP=$(address "$@NAME@")
export VLLM_HOST_IP
head=$(address "$MASTER_ADDR"):$MASTER_PORT
ended=$LUMIIMG_JOB/ended
#? in the foreground of its own process: `ray stop` would also end the Ray processes of other jobs
set_up() { exec ray start --block --disable-usage-stats --node-ip-address="$VLLM_HOST_IP" --num-cpus="$(nproc)" --num-gpus=@GPUS@ "$@"; }

if [ "$@NODE@" -ne 0 ]; then
    #? provide the GPUs to the first node until its program has ended; try again until Ray is up there
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
#? clients get a port of the job's own: a conflict with another job's Ray on this node would end
#? this one; a Ray without client support (no grpc) refuses a port
clients=
if python3 -c 'import grpc' 2>/dev/null; then clients=$((MASTER_PORT + 1)); fi
set_up --head --port="$MASTER_PORT" ${clients:+--ray-client-server-port="$clients"} \
    --temp-dir="@RAY@" --include-dashboard=false &
ray=$!
#? the program starts only once all nodes are up, and never if Ray does not come up. Try a connection
#? first: Ray itself retries for minutes if nothing answers
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
