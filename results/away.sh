#!/usr/bin/env bash
# Goes on with the campaign on a machine with a GPU that is lent for minutes: it has torch and
# scikit-learn for Python 3.12, and nothing can be installed on it.
#
# Here, once: what else foresee and its tests need there, in a folder to carry along.
#     results/away.sh pack AWAY
# Put into AWAY/data what is to be read: MNIST/raw/*.gz, or files for results/data.py
# (cifar10/*.npz), in several calls if not all may travel at once.
# There, from the root of the copy, as often as there is time, parts in the order of their worth:
#     OUT=FOLDER results/away.sh run AWAY SECONDS PART...
#     results/away.sh test AWAY
# What is begun goes on between calls, as long as the machine is kept, and a later call need not
# carry AWAY. OUT/rounds.tar.gz is at most 12 s old; unpack it over RUNS here, then
# campaign.py pack RUNS.
set -euo pipefail
place=${AWAY_PLACE:-$HOME/campaign}
device=${AWAY_DEVICE:-cuda}
export PYTHONPATH=$place/tree/src:$place/lib OMP_NUM_THREADS=2 PYTHONUNBUFFERED=1

pack() {
  local there=(--no-deps --no-compile --only-binary :all: --constraint constraints.txt
    --python-version 3.12 --platform manylinux2014_x86_64)
  PYTHONPATH='' python3 -m pip install --quiet "${there[@]}" --target "$1/lib" msgspec
  PYTHONPATH='' python3 -m pip install --quiet "${there[@]}" --target "$1/tests" \
    pytest pluggy iniconfig hypothesis sortedcontainers beartype
  cp -R .venv/lib/python3*/site-packages/foresee-*.dist-info "$1/lib"
  mkdir -p "$1/data"
}

# To where it outlives a call.
carry_over() {
  mkdir -p "$place/data" "$place/runs"
  [ ! -d "$1/data" ] || cp -R "$1/data/." "$place/data"
  [ -d "$place/tree" ] || { cp -R "$1/lib" "$place/lib"; cp -R . "$place/tree"; }
  cd "$place/tree"
}

campaign() {
  python3 results/campaign.py "$1" "$place/runs" "${@:2}"
}

work() {
  local on=(--data "$place/data" --device "$device") preparing
  ! command -v nvidia-cuda-mps-control >/dev/null || nvidia-cuda-mps-control -d || true
  campaign unpack --parts "$@"
  prepare "$@" & preparing=$!
  for part in "$@"; do
    until [ -e "$place/${part%%-*}.ready" ]; do
      kill -0 $preparing 2>/dev/null || [ -e "$place/${part%%-*}.ready" ] || exit 1
      sleep 1
    done
    campaign run --parts "$part" "${on[@]}" --processes 5
  done
}

# While others train: the data of each set as soon as all of its files are there, and the budget.
prepare() {
  local set
  for set in $(printf '%s\n' "${@%%-*}" | uniq); do
    until there "$set"; do sleep 1; done
    [ "$set" != cifar10 ] || campaign budget "${on[@]}"
    touch "$place/$set.ready"
  done
}

there() {
  [ "$1" = mnist ] && [ -e "$place/data/MNIST/raw/train-labels-idx1-ubyte.gz" ] && return
  [ -e "$place/data/$1.npz" ] && return
  python3 results/data.py "$place/data" "$place/data" "$1" 2>/dev/null
}

bring() {
  find "$place/runs" -name '*-[0-9]*.jsonl' -o -name budget.json |
    tar -czf "$OUT/rounds.new" --transform "s|${place#/}/runs/||" -T - 2>/dev/null ||
    [ $? = 1 ]  # a file grew meanwhile
  mv "$OUT/rounds.new" "$OUT/rounds.tar.gz"
  cp "$place/log" "$OUT/log"
}

working() {
  { kill -0 "$(cat "$place/pid")"; } 2>/dev/null
}

case $1 in
  pack) pack "$2" ;;
  work) work "${@:2}" ;;
  test)
    from=$(realpath "$2")
    carry_over "$2"
    PYTHONPATH=$PYTHONPATH:$from/tests python3 -m pytest -q -p no:benchmark -p no:xdist \
      tests/strategies/test_cuda.py tests/kernels/test_step.py tests/kernels/test_triton.py \
      tests/test_training.py
    ;;
  run)
    until=$((SECONDS + $3))
    carry_over "$2"
    if ! working; then
      setsid nohup bash results/away.sh work "${@:4}" >>"$place/log" 2>&1 &
      echo $! >"$place/pid"
    fi
    while working && [ $SECONDS -lt $until ]; do sleep 12 && bring; done
    tail -n 20 "$place/log"
    campaign status --parts "${@:4}"
    ;;
esac
