# Llama 3.1 8B on two nodes: the script of a main branch, which head.sh changes
export CUDA_DEVICE_MAX_CONNECTIONS=1
PP=2
MODEL=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu --disable-bias-linear
  --num-attention-heads 32 --group-query-attention --num-query-groups 8
  --normalization RMSNorm --position-embedding-type rope
  --untie-embeddings-and-output-weights --vocab-size 128256
  --seq-length 8192 --max-position-embeddings 131072
)
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py "${MODEL[@]}" \
  --tensor-model-parallel-size 4 --sequence-parallel \
  --pipeline-model-parallel-size $PP --use-distributed-optimizer \
  --micro-batch-size 1 --global-batch-size 64 --bf16 --lr 3e-4 \
  --hidden-dropout 0 --attention-dropout 0
