#!/bin/bash
# Submit the same study on 1, 2, 3, 6, 9 and 12 GPUs, each with a results folder of its own. From the repository's root:
#
#     SBATCH_TIMELIMIT=8:00:00 slurm/scaling.sh -m mnist_nn 10 20
#
# sbatch reads SBATCH_ACCOUNT, SBATCH_PARTITION and SBATCH_TIMELIMIT, slurm/search.sbatch reads LAUNCH and IMAGE.
set -euo pipefail

GPUS=${GPUS:-1 2 3 6 9 12}
PER_NODE=${PER_NODE:-3} # GPUs of a node; with 4, GPUS="1 2 4 8 12" fills whole nodes
INTO=${INTO:-results/scaling}

for gpus in $GPUS; do
    nodes=$(((gpus + PER_NODE - 1) / PER_NODE))
    if [ $((gpus % nodes)) -ne 0 ]; then
        echo "GPUS: $gpus cannot be spread evenly over $nodes nodes of $PER_NODE: give other GPUS or PER_NODE" >&2
        exit 2
    fi
done
for gpus in $GPUS; do
    nodes=$(((gpus + PER_NODE - 1) / PER_NODE))
    RESULTS=$INTO/$gpus sbatch --job-name="scaling-$gpus" --nodes=$nodes --gpus-per-node=$((gpus / nodes)) \
        slurm/search.sbatch "$@"
done
echo "When they are done: python -m mpitune scaling $INTO/[0-9]* --into $INTO"
