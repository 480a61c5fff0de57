# Source: NVIDIA/Megatron-LM d98e8a64, examples/llama/train_llama3_8b_h100_fp8.sh; reduced to what sizes need.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
TOKENIZER_ARG=${3:-"MOCK"} # Path to tokenizer model, or "MOCK"
mkdir -p "$(dirname "$TOKENIZER_ARG")"
GPUS_PER_NODE=8
NUM_NODES=1
PRETRAIN_SCRIPT_PATH="pretrain_gpt.py"
TP_SIZE=1
NUM_LAYERS=32
DTYPE="fp8"
MODEL_ARGS=(
    --num-layers $NUM_LAYERS
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --grad-reduce-in-bf16
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE
    --sequence-parallel
)
DDP_ARGS=(
    --use-distributed-optimizer
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    MODEL_ARGS+=("--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    MODEL_ARGS+=("--tokenizer-type HuggingFaceTokenizer")
fi
if [ ! -f "$PRETRAIN_SCRIPT_PATH" ]; then
    exit 1
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES \
    "$PRETRAIN_SCRIPT_PATH" \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${DTYPE_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]}
