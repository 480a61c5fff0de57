"""The symbols of the formulas and what they mean."""

from __future__ import annotations

import re

SCHEDULE_SYMBOLS: dict[str, str] = {
    "N": "micro-batches that pass a chunk before the rank turns to the next one",
    "N_last": "micro-batches of the last group that passes a chunk together",
    "half": "half of the micro-batches, rounded down",
    "limit": "micro-batches that the schedule lets a rank hold",
    "idle": "chunk actions for which each rank waits where forward, input and weight gradient take as long",
}
"""What a schedule's own formulas may use besides p, m, v and r; none of them means anything else elsewhere."""

SYMBOLS: dict[str, str] = {
    "p": "pipeline stages",
    "r": "the stage, from 0",
    "v": "virtual stages of a rank",
    "m": "micro-batches of a step in one pipeline, B / (d b)",
    "b": "sequences of a micro-batch",
    "s": "tokens of a sequence",
    "t": "tensor parallel",
    "d": "data parallel",
    "c": "context parallel",
    "e": "expert parallel",
    "etp": "expert tensor parallel",
    "gpus": "GPUs of the cluster",
    **SCHEDULE_SYMBOLS,
    "L": "layers of the model, those of multi-token prediction included where they work too",
    "L_r": "layers that repeat work in their backward",
    "L_g": "of them, those that each of their groups of weights repeats too; of backwards that are not split none",
    "h": "hidden size",
    "V": "vocabulary as the trainer stores it, padded",
    "T": "tokens of a micro-batch on one context-parallel rank, s b / c",
    "top_k": "experts a token visits",
    "load": "tokens of the fullest expert rank over the mean (assumption expert_load_factor)",
    "P": "parameters on one rank of the stage, routed experts left out",
    "E": "parameters of routed experts on one rank of the stage",
    "n": "layers of the stage",
    "n_head": "layers of the chunk with the head",
    "P_layer": "parameters of one layer on one rank",
    "P_embedding": "parameters in front of the first layer on one rank",
    "P_head": "parameters behind the last layer on one rank",
    "P_mtp": "projections and embedding copy of multi-token prediction on one rank",
    "P_shared": "token tables that a rank with both embedding and head does not hold a second time, in parameters",
    "G": "parameters of the largest layer of the stage on one rank",
    "D": "elements of one matrix of each shape in the largest layer, on one rank",
    "versions": "versions of its weights that the stage keeps at once",
    "k": "micro-batches whose activations the stage holds at its highest moment",
    "k_head": "micro-batches of them whose loss is computed",
    "w_head": "micro-batches that wait for the weight gradient of the head (a share of it where that is spread)",
    "S": "bytes that one layer keeps for one micro-batch",
    "I": "bytes of a layer's input, kept where the layer is recomputed, one micro-batch",
    "ki": "micro-batches in flight times the layer inputs that are kept for each",
    "kw": "micro-batches in flight times the share of the layers that keep all they save",
    "g": "layers recomputed in one go",
    "Q_f": "bytes of a layer's feed-forward that are made again",
    "Q_a": "bytes of a layer's attention that are made again",
    "w": "micro-batches at that moment whose input gradient is done and whose weight gradient is not",
    "S_w": "bytes that one layer holds for one of those",
    "G_w": "bytes of gradients among them",
    "G_r": "bytes of them in buffers that they were received in, counted there",
    "Z": "bytes that those of all chunks no longer hold: what came behind the last product of a chunk",
    "sent": "input gradients that a chunk has sent in the step so far",
    "W": "elements of the last matrix of a layer's feed-forward on one rank, of all its experts",
    "A": "bytes that one layer keeps for one micro-batch without recomputation",
    "A_b": "bytes that repeats for the weight gradients of a chunk's layers but the last have left",
    "A_e": "bytes that those of its last layer hold at their worst moment",
    "A_r": "bytes that recomputed layers have let go of until their weight gradients",
    "G_u": "bytes of gradients of layers whose weight gradients are done, counted among those that wait",
    "freed": "bytes that other parts of the layer had held, free by then",
    "neighbours": "stages from which the chunks of the rank receive, forward and backward",
    "allocated": "bytes of all tensors of the stage: the terms above",
    "transient": "bytes of those of them that come and go with the micro-batches",
    "allocator_overhead": "assumption",
    "bucket": "elements of a bucket of gradients",
    "buckets": "buckets flattened at once (assumption reduction_buckets)",
    "eager_overhead": "assumption",
    "cuda_context_bytes": "assumption",
    "workspace_bytes": "assumption",
    "communicator_bytes": "assumption",
    "groups": "process groups of more than one rank that a rank belongs to",
    "C": "seconds of one layer's own compute, forward and backward, one micro-batch",
    "C_embedding": "seconds of the embedding, forward and backward, one micro-batch",
    "C_head": "seconds of output layer and loss, forward and backward, one micro-batch",
    "R": "seconds of one layer that recomputation repeats, one micro-batch",
    "R_g": "seconds that its groups of weights repeat, as many times as there are groups",
    "X": "seconds of one layer's token exchange that stay exposed, forward and backward, one micro-batch",
    "kv": "elements of one token's keys and values on one rank",
    "latency": "seconds of a collective's start (assumption collective_latency_s)",
    "o_cp": "share of the key/value exchange that hides (assumption context_parallel_overlap)",
    "o_dp": "share of the data-parallel traffic that hides (assumption data_parallel_overlap)",
    "pieces": "pieces, one a rank and tensor, that ZeRO-3 gathers and reduces in a step",
    "t_piece": "seconds of CPU time for a piece (assumption gather_piece_s)",
    "W_tp": "usable bandwidth of the tensor-parallel group, bytes/s",
    "W_cp": "usable bandwidth of the context-parallel group, bytes/s",
    "W_dp": "usable bandwidth of the data-parallel group, bytes/s",
    "W_edp": "usable bandwidth of the experts' data-parallel group, bytes/s",
    "W_tied": "usable bandwidth between first and last stage, bytes/s",
    "W_hbm": "usable bandwidth of the GPU's memory, bytes/s",
    "u": "bytes reduced and gathered for one parameter in a step",
    "z_e": "ranks that share one copy of the experts, t c d / (e etp)",
    "step_overhead_s": "assumption",
    "busy": "seconds of work of an average rank: the parts above",
    "even": "seconds of the pipeline with the same work spread evenly and free links",
    "free": "seconds of the pipeline as it is, with free links",
    "span": "seconds of the pipeline as it is, with its links",
    "F": "model FLOPs of a step, recomputation left out",
    "peak": "dense peak of one GPU at the training precision, FLOP/s",
    "step": "seconds of a step",
}
"""Every symbol of a formula. A symbol of one kind of layer among several carries its number, from 1: S1, S2. Where a
rank holds several chunks, k, w and n carry the number of the chunk, from 0: k0, n0; with several kinds n0_1, n0_2."""

CHUNK_SYMBOLS = ("k", "w", "n", "ki", "kw", "sent")
"""Those that a chunk has for itself."""

_NUMBERED = re.compile(rf"(?P<name>{'|'.join(CHUNK_SYMBOLS)})(?P<chunk>\d+)(?:_(?P<kind>\d+))?")


def of_all_chunks(symbol: str, *, many_kinds: bool) -> str:
    """The symbol without the number of its chunk, for plans with several chunks a rank.

    >>> [of_all_chunks(symbol, many_kinds=True) for symbol in ("k0", "n0_2", "n2", "S1")]
    ['k', 'n2', 'n2', 'S1']
    >>> of_all_chunks("n1", many_kinds=False)
    'n'
    """
    found = _NUMBERED.fullmatch(symbol)
    if found is None or (found["name"] == "n" and many_kinds and found["kind"] is None):
        return symbol
    return found["name"] + (found["kind"] or "")
