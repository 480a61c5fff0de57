#!/bin/bash
# Source: NVIDIA-NeMo/Megatron-Bridge 067f987d, examples/models/gpt_oss/slurm_pretrain.sh; reduced to the first of its
# parallel configurations, "2,4,4,1,True", which its loop reads into these variables.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

MODEL_NAME=gpt_oss_20b
RECIPE_NAME="${RECIPE_NAME:-${MODEL_NAME}_pretrain_config}"
SEQ_LENGTH=4096
TRAIN_ITERS=1000
GLOBAL_BATCH_SIZE=128
MICRO_BATCH_SIZE=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=2 PP=4 EP=4 CP=1 SP=True

CLI_OVERRIDES=" \
    model.seq_length=$SEQ_LENGTH \
    train.train_iters=$TRAIN_ITERS \
    train.global_batch_size=$GLOBAL_BATCH_SIZE \
    train.micro_batch_size=$MICRO_BATCH_SIZE \
    logger.wandb_exp_name=${MODEL_NAME}_pretrain_tp${TP}_pp${PP}_ep${EP}_sp${SP}_cp${CP} \
    dataset.seq_length=$SEQ_LENGTH \
    model.tensor_model_parallel_size=$TP \
    model.pipeline_model_parallel_size=$PP \
    model.expert_model_parallel_size=$EP \
    model.sequence_parallel=$SP \
    model.context_parallel_size=$CP \
"
CMD="uv run --no-sync python /opt/Megatron-Bridge/scripts/training/run_recipe.py"
CMD="$CMD --recipe ${RECIPE_NAME}"
CMD="$CMD $CLI_OVERRIDES"
srun --mpi=pmix $CMD
