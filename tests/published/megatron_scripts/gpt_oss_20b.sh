# Source: NVIDIA/Megatron-LM d98e8a64, examples/gptoss/02_train.sh; reduced to what sizes need.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINT_PATH="NO_VALUE_PROVIDED"
while [[ $# -gt 0 ]]; do
    case $1 in
        --checkpoint-path)
            CHECKPOINT_PATH="$2"
            shift 2
            ;;
        *)
            exit 1
            ;;
    esac
done
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
PP_SIZE=${WORLD_SIZE}
NUM_LAYERS=12
python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --normalization RMSNorm \
    --num-layers ${NUM_LAYERS} \
    --hidden-size 512 \
    --ffn-hidden-size 2048 \
    --num-attention-heads 64 \
    --group-query-attention \
    --num-query-groups 8 \
    --seq-length 8192 \
    --max-position-embeddings 8192 \
    --position-embedding-type rope \
    --quick-geglu \
    --softmax-type learnable \
    --window-attn-skip-freq 2 \
    --window-size 127,0 \
    --enable-gpt-oss \
    --num-experts 4 \
    --moe-router-topk 2 \
    --moe-ffn-hidden-size 2048 \
    --vocab-size 128256 \
    --micro-batch-size 1 \
    --global-batch-size 128 \
    --bf16 \
    --recompute-activations \
    --pipeline-model-parallel-size ${PP_SIZE} \
    --sequence-parallel \
    --save $CHECKPOINT_PATH
