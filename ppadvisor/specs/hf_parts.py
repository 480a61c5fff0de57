"""What the families of `hf_config` share: the trunk of a decoder, sliding windows, routed experts, latent attention.

Each function reads its keys of a config.json and gives keyword arguments of ModelSpec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppadvisor.specs.hf_reader import ConfigReader, Fields
from ppadvisor.specs.model import MAX_LAYERS, MlaSpec, MoeSpec
from ppadvisor.specs.validation import validate


def layer_count(r: ConfigReader) -> int:
    """num_hidden_layers."""
    layers = r.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise r.error(r.given("num_hidden_layers")[0], f"got {layers}, needs at most {MAX_LAYERS}")
    return layers


def _query_groups(r: ConfigReader, heads: int) -> int:
    groups = r.optional_size("num_key_value_heads") or heads
    if heads % groups:
        told = "" if "num_key_value_heads" in r.config else f", what {r.family} takes where the key is absent"
        name = r.given("num_attention_heads")[0]
        raise r.error(name, f"got {heads}, needs a multiple of num_key_value_heads ({groups}{told})")
    return groups


def divided_head_dim(r: ConfigReader) -> int:
    """hidden_size / num_attention_heads, which must come out whole."""
    hidden, heads = r.size("hidden_size"), r.size("num_attention_heads")
    if hidden % heads:
        hidden_name, heads_name = r.given("hidden_size")[0], r.given("num_attention_heads")[0]
        raise r.error(hidden_name, f"got {hidden}, needs a multiple of {heads_name} ({heads})")
    return hidden // heads


def trunk(r: ConfigReader, **given: object) -> Fields:
    """What nearly every family since Llama shares: RMSNorm, rotary positions, gated feed-forward, grouped queries.

    `given` wins over it, and what is given of the sizes is not read from the file.
    """
    hidden, heads = r.size("hidden_size"), r.size("num_attention_heads")
    fields: Fields = {
        "num_layers": layer_count(r),
        "hidden_size": hidden,
        "ffn_hidden_size": given.get("ffn_hidden_size") or r.size("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": given.get("num_query_groups") or _query_groups(r, heads),
        "head_dim": given.get("head_dim") or r.optional_size("head_dim") or divided_head_dim(r),
        "vocab_size": r.size("vocab_size"),
        "gated_mlp": True,
        "normalization": "rmsnorm",
        "positional_embedding": "rope",
    }
    return fields | given


def attention_bias(r: ConfigReader, default: bool = False) -> Fields:
    """One switch for the biases of all four attention projections."""
    bias = r.flag("attention_bias", default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def all_biases(bias: bool = True) -> Fields:
    """Biases on every matrix of a layer, or on none."""
    return {"qkv_bias": bias, "attention_output_bias": bias, "mlp_bias": bias}


def windows(r: ConfigReader, full_by_family: Callable[[int], bool]) -> Fields:
    """Sliding-window fields; `full_by_family(i)`: layer i attends to everything where no layer_types list says so."""
    num_layers = layer_count(r)
    kinds = r.words("layer_types", ("full_attention", "sliding_attention"))
    if kinds is not None and len(kinds) != num_layers:
        raise r.error("layer_types", f"got {len(kinds)} entries, needs num_hidden_layers = {num_layers}")
    window, positions = r.optional_size("sliding_window"), r.optional_size("max_position_embeddings")
    if window is None or (positions is not None and window >= positions):
        return {}  # a window as long as the longest sequence cuts nothing off
    full = tuple(i for i in range(num_layers) if (kinds[i] == "full_attention" if kinds else full_by_family(i)))
    if len(full) == num_layers:
        return {}
    if not full:
        return {"sliding_window": window}
    period = full[0] + 1
    if full == tuple(range(full[0], num_layers, period)):
        return {"sliding_window": window, "sliding_window_period": period}
    return {"sliding_window": window, "full_attention_layers": full}


def no_layer_is_full(_: int) -> bool:
    """Every layer has the window."""
    return False


def every_nth_is_full(n: int) -> Callable[[int], bool]:
    """Layers n - 1, 2n - 1, ... have no window."""
    return lambda i: (i + 1) % n == 0


def routed_experts(r: ConfigReader, experts_key: str, width: int, **fields: object) -> MoeSpec:
    """The experts of a layer, `width` the feed-forward width of one."""
    experts, chosen = r.size(experts_key), r.size("num_experts_per_tok")
    if chosen > experts:
        name = r.given("num_experts_per_tok")[0]
        raise r.error(name, f"got {chosen}, needs at most {r.given(experts_key)[0]} ({experts})")
    sizes: Fields = {"num_experts": experts, "experts_per_token": chosen, "moe_ffn_hidden_size": width}
    return validate(MoeSpec, sizes | fields, r.where)


def mixed_layers(
    r: ConfigReader, experts_key: str, sparse: Sequence[int], **fields: object
) -> tuple[int, MoeSpec | None]:
    """The dense width and the experts of a model whose layers `sparse` have experts and whose other layers are dense.

    Where no layer is dense, intermediate_size means nothing (copies of one model differ in it): the experts' width
    stands in for it.
    """
    num_layers, width = layer_count(r), r.size("moe_intermediate_size")
    first = sparse[0] if sparse else num_layers
    tail = list(sparse) == list(range(first, num_layers))
    where: Fields = {"first_dense_layers": first} if tail else {"moe_layers": tuple(sparse)}
    moe = routed_experts(r, experts_key, width, **fields, **where)
    if len(sparse) == num_layers:
        r.optional_size("intermediate_size")  # unused, but nonsense in it is worth a word
        return width, moe
    return r.size("intermediate_size"), moe if sparse else None


def latent_attention(r: ConfigReader, **given: object) -> Fields:
    """Multi-head latent attention: num_key_value_heads and head_dim in the file mean nothing, and are not read."""
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    ranks: Fields = {key: r.size(key) for key in keys} | {"q_lora_rank": r.optional_size("q_lora_rank")}
    mla = validate(MlaSpec, ranks, r.where)
    heads: Fields = {
        "num_query_groups": r.size("num_attention_heads"),
        "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim,
    }
    return trunk(r, mla=mla, **heads, **attention_bias(r), **given)
