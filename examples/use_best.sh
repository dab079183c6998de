#!/bin/sh
# Trains with what a study found:  use_best.sh STUDY [options of train_ddp.py]
# STUDY is the study's folder. NPROC_PER_NODE says how many ranks; without it one for each GPU.
set -eu

if [ $# -eq 0 ]; then
  echo "usage: $0 STUDY [options of train_ddp.py]" >&2
  exit 2
fi
study=$1
shift
here=$(cd "$(dirname "$0")" && pwd)

# NCCL reads its variables when a rank starts, so they must be set before torchrun.
set -a
. "$study/best.env"
set +a

exec torchrun --standalone --nproc-per-node="${NPROC_PER_NODE:-gpu}" \
  "$here/train_ddp.py" --best "$study/best.yaml" "$@"
