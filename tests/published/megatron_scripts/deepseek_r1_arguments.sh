# Source: NVIDIA/Megatron-LM d98e8a64, examples/post_training/modelopt/conf/deepseek-ai/DeepSeek-R1.sh; reduced: the
# options of the model in a variable, for a call in another file.
MODEL_ARGS=" \
    --micro-batch-size 1 \
    --bf16 \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --swiglu \
    --num-layers 61 \
    --hidden-size 7168 \
    --ffn-hidden-size 18432 \
    --num-attention-heads 128 \
    --kv-channels 128 \
    --multi-latent-attention \
    --kv-lora-rank 512 \
    --v-head-dim 128 \
    --q-lora-rank 1536 \
    --qk-head-dim 128 \
    --qk-layernorm \
    --qk-pos-emb-head-dim 64 \
    --num-experts 256 \
    --moe-layer-freq [0]*3+[1]*58 \
    --moe-ffn-hidden-size 2048 \
    --moe-router-enable-expert-bias \
    --moe-router-topk 8 \
    --moe-shared-expert-intermediate-size 2048 \
    --seq-length 4096 \
    --max-position-embeddings 163840 \
    --recompute-activations \
    --moe-layer-recompute \
    --sequence-parallel \
"
