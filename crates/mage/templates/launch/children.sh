# `part NAME COMMAND…` starts one part, in a process group of its own, so that it can be ended with all that it started.
pids=() names=()
part() {
  names+=("$1")
  shift
  set -m
  "$@" </dev/null &
  set +m
  pids+=($!)
}
signal() { kill "-$1" -- "-$2" 2>/dev/null; }
# Ends the parts, and nothing else; those that do not listen after ${STOP_SECONDS:-30} seconds, by force.
stop() {
  local status=$? pid second
  trap - EXIT
  trap '' INT TERM HUP
  for pid in "${pids[@]}"; do signal TERM "$pid" || true; done
  for ((second = 0; second < ${STOP_SECONDS:-30}; second++)); do
    for pid in "${pids[@]}"; do signal 0 "$pid" && sleep 1 && continue 2; done
    break
  done
  for pid in "${pids[@]}"; do signal KILL "$pid" || true; done
  wait
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# Parts are servers, and none should end: the first that does ends the whole, with its status.
watch_over() {
  local i status
  while :; do
    sleep 1
    for i in "${!pids[@]}"; do
      if ! kill -0 "${pids[i]}" 2>/dev/null; then
        wait "${pids[i]}" && status=0 || status=$?
        echo "${names[i]} ended with status $status: ending the rest" >&2
        [ "$status" != 75 ] || echo "75 says that another SkyRL works in the shared folder: give each its own (--shared)" >&2
        exit "$status"
      fi
    done
  done
}
