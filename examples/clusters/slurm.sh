#!/bin/bash
# One `shoal run` per node, one peer per GPU. A node that fails costs its peers, and the others no step.
#
#     sbatch --nodes 4 --gpus-per-node 8 examples/clusters/slurm.sh train.py --checkpoints "$HOME/runs/a"
#     JOIN=JOB sbatch --nodes 2 --gpus-per-node 8 examples/clusters/slurm.sh train.py ...    # two more join that job
#
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --no-kill               # the allocation outlives a node
#SBATCH --requeue               # what is stopped as a whole goes on from its last checkpoint
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120       # two minutes before the end: peers end their step, write a checkpoint, and leave
set -euo pipefail

key=$HOME/.shoal.key  # in the home of all nodes
[[ -e $key ]] || shoal key new --out "$key"

job=${JOIN:-$SLURM_JOB_ID}  # whose run it is
nodes=$SLURM_JOB_NODELIST
[[ -z ${JOIN:-} ]] || nodes=$(squeue --noheader --jobs "$JOIN" --format %N)
port=$((20000 + job % 10000))  # jobs that share a node have other names, and other ports
seeds=$(scontrol show hostnames "$nodes" | head -n 3 | sed "s/\$/:$port/" | paste -sd,)

exec srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  shoal run -n auto ${JOIN:+--join} --swarm "job-$job" --key "$key" --bind "*:$port" --seeds "$seeds" --restarts 3 "$@"
