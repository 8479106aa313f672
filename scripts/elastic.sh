#!/usr/bin/env bash
# Runs one host's part of a job that goes on when processes or hosts die (docs/going_on.md). Start it on every host.
#   scripts/elastic.sh HOSTS MIN JOB.toml [--processes N] [--port P] [--set section.key=value]...
# HOSTS: the names or addresses of all hosts, "a,b,c", in the same order everywhere. MIN: the run needs so many of them, more
# than half. --processes: on this host, 1 unless given. --port: of the meeting point, 29400 unless given. The hosts meet at the
# first of HOSTS, and when it has died at the next one. Exit code 0: the run has ended; end.json in run.dir says how, but a bad
# job writes none: its message is in the output. 1: this host met too few others for ten minutes. 2: bad arguments.
# TORCHRUN (default: torchrun of .venv, else of PATH) and PPTRAIN (default: build/pptrain) name the programs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,9s/^# *//p' "$0"; }
die() { echo "elastic.sh: $*" >&2 && exit 2; }
[[ ${1:-} != -h && ${1:-} != --help ]] || { usage && exit; }
(($# >= 3)) || { usage >&2 && exit 2; }

IFS=, read -ra hosts <<<"$1"
least=$2
job=$3
shift 3
processes=1
port=29400
settings=()
while (($#)); do
  case $1 in
    --processes | --port | --set) (($# > 1)) || die "$1 needs a value" ;;&
    --processes) processes=$2 && shift 2 ;;
    --port) port=$2 && shift 2 ;;
    --set) settings+=(--set "$2") && shift 2 ;;
    *) die "unknown option $1" ;;
  esac
done
[[ $processes =~ ^[1-9][0-9]{0,4}$ ]] || die "--processes $processes: give a number, 1 or more"
[[ $port =~ ^[1-9][0-9]{0,4}$ ]] && ((port < 65536)) || die "--port $port: give a number from 1 to 65535"
[[ $least =~ ^[0-9]+$ ]] && ((least <= ${#hosts[@]})) || die "MIN is $least: give a number up to ${#hosts[@]}"
((2 * least > ${#hosts[@]})) ||
  die "MIN is $least of ${#hosts[@]} hosts: two halves that do not see each other would both go on; it must be more than half"
[[ -f $job ]] || die "no such job file: $job"

torchrun=${TORCHRUN:-}
[[ -n $torchrun || ! -x $root/.venv/bin/torchrun ]] || torchrun=$root/.venv/bin/torchrun
torchrun=$(command -v "${torchrun:-torchrun}") || die "torchrun is needed: pip install torch, or set TORCHRUN"
# With its Python, which its first line names, elastic_agent.py is a torchrun that waits less.
agent_command=("$torchrun")
LC_ALL=C read -r line <"$torchrun" 2>/dev/null || true
[[ ${line:-} != '#!'*python* || ! -x ${line#'#!'} ]] || agent_command=("${line#'#!'}" "$root/scripts/elastic_agent.py")
pptrain=${PPTRAIN:-$root/build/pptrain}
"$pptrain" --version >/dev/null || die "$pptrain does not run here"

# This host among HOSTS, by its name or an address.
own=
for host in "${hosts[@]}"; do
  for name in $(hostname) $(hostname -I 2>/dev/null); do
    [[ $host != "$name" ]] || own=$host
  done
done
[[ -n $own ]] || die "none of ${hosts[*]} is a name or an address of this host"

# torchrun 2.11 lets hosts join later only without a shared store.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# By it the hosts of this run find each other, not those of another one, and a start knows the lock of a host of this run that
# has died.
run_dir=
for setting in "${settings[@]}"; do [[ $setting != run.dir=* ]] || run_dir=$setting; done
export PPTRAIN_ELASTIC_RUN
PPTRAIN_ELASTIC_RUN=$(printf '%s ' "${hosts[@]}" "$port" "$(cksum <"$job")" "$run_dir" | cksum | cut -d' ' -f1)
agent=
stopping=
trap 'stopping=1; [[ -z $agent ]] || kill -TERM "$agent" 2>/dev/null || true' TERM INT
# The next of HOSTS after the last meeting point, which all who met there take; but where others meet already, if they do.
meeting_point() {
  local -i next=0 i
  for i in "${!hosts[@]}"; do [[ ${hosts[i]} != "${endpoint:-}" ]] || next=$(((i + 1) % ${#hosts[@]})); done
  endpoint=${hosts[next]}
  found=
  for host in "${hosts[@]}"; do
    if [[ $host != "$own" ]] && timeout 1 bash -c ": <>/dev/tcp/$host/$port" 2>/dev/null; then
      endpoint=$host
      found=1
      return
    fi
  done
}
die_alone() {
  echo "elastic.sh: for ten minutes $own has met too few hosts, or the run has ended without it" >&2
  exit 1
}
alone_since=$SECONDS
for ((turn = 0; ; ++turn)); do
  meeting_point
  # torchrun names an agent by address and process number. Here an earlier agent may have had the same ones, in a container
  # above all, and count as alive until its keep-alives end.
  if [[ -n $found && $turn == 0 ]]; then
    sleep 4 &
    wait $! || true
  fi
  [[ -z $stopping ]] || exit 143
  # Patient at first, since hosts start one after the other; later a host that has found no one looks elsewhere.
  join=$((turn == 0 ? 60 : 15))
  conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,read_timeout=5,join_timeout=$join
  [[ $endpoint == "$own" ]] && conf+=,is_host=1 || conf+=,is_host=0
  began=$SECONDS
  "${agent_command[@]}" --nnodes "$least:${#hosts[@]}" --nproc-per-node "$processes" --max-restarts 1000000 --monitor-interval 0.1 \
    --rdzv-backend c10d --rdzv-id "pptrain-$PPTRAIN_ELASTIC_RUN" --rdzv-endpoint "$endpoint:$port" --rdzv-conf "$conf" \
    --local-addr "$own" --no-python "$pptrain" --config "$job" "${settings[@]}" &
  agent=$!
  [[ -z $stopping ]] || kill -TERM "$agent" 2>/dev/null || true
  code=0
  wait "$agent" || code=$?
  while kill -0 "$agent" 2>/dev/null; do  # a signal has ended the wait
    code=0
    wait "$agent" || code=$?
  done
  agent=
  ((code)) || exit 0
  [[ -z $stopping ]] || exit "$code"
  ((SECONDS - began < 90)) || alone_since=$SECONDS  # it was with others
  ((SECONDS - alone_since < 600)) || die_alone
  echo "elastic.sh: the agent that met others at $endpoint has ended with $code; another one follows" >&2
  sleep 0.5 &
  wait $! || true
done
