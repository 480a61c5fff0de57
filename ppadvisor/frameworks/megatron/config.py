"""A configuration of Megatron-LM, from a launch script, a command line or YAML, in our words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import OF_A_SCRIPT, Broken, Configuration, Given, GpusUnknown, Remark
from ppadvisor.frameworks.megatron.accepted import RULES, broken_rules
from ppadvisor.frameworks.megatron.arguments import Arguments, parse
from ppadvisor.frameworks.megatron.call import training_call
from ppadvisor.frameworks.megatron.check_steps import remarks
from ppadvisor.frameworks.megatron.given_model import SIZES, with_model
from ppadvisor.frameworks.megatron.model import model_of
from ppadvisor.frameworks.megatron.places import places_of, said_in
from ppadvisor.frameworks.megatron.plan import not_in_the_specifications, plan_of, training_of
from ppadvisor.frameworks.megatron.recognise import is_yaml
from ppadvisor.frameworks.megatron.recognise import recognises as recognises
from ppadvisor.frameworks.megatron.run import Run
from ppadvisor.frameworks.megatron.unmodelled import not_modelled, refuse_other_models
from ppadvisor.frameworks.megatron.yaml_file import read_yaml
from ppadvisor.frameworks.shell import Field, Note, read_script
from ppadvisor.specs.files import read_text
from ppadvisor.specs.model import ModelSpec

TAKES = (*OF_A_SCRIPT, "model")

MAX_SCRIPT_BYTES = 300_000
"""A launch script has a few thousand bytes."""

DEFAULT_TOKENIZER = "GPT2BPETokenizer"
UNSOUND = ("required_options", "positive_sizes", "head_width", "option_value")
"""Rules without which the numbers themselves are none: a default that stands for them would be a guess."""
MUST_BE_KNOWN = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels", "num_query_groups"),
    *("seq_length", "max_position_embeddings", "micro_batch_size", "global_batch_size", "num_experts"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "pipeline_model_parallel_layout"),
    *("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank", "moe_ffn_hidden_size"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "moe_router_topk"),
    *("recompute_granularity", "recompute_num_layers", "mtp_num_layers", "moe_layer_freq"),
    *("microbatch_group_size_per_vp_stage", "step_batch_size_schedule", "vocab_size", "padded_vocab_size"),
)
"""Values without which nothing can be said."""


def read(path: Path, given: Given) -> Configuration:
    """Read a file. InputError for what cannot be read, or not be known without a shell."""
    text = read_text(path, MAX_SCRIPT_BYTES)
    if not is_yaml(path, text):
        return read_script_text(text, str(path), given)
    if given.variables:
        raise InputError(f"--define has no effect on YAML of Megatron-LM: {path} reads no variables")
    words, environment = read_yaml(path)
    return configuration(words, environment, given, str(path), in_file=None, notes=())


def read_script_text(text: str, file: str, given: Given) -> Configuration:
    """Read a launch script; `file` is its name in messages."""
    call = training_call(read_script(text, file, given.variables), text, file)
    try:
        found = configuration(
            call.options, call.environment, given, file, in_file=call.num_gpus, notes=call.notes, called=call.line
        )
    except InputError as error:
        # what is not known may be what a misspelt definition was for
        told = [f"--define {name}=... has no effect: {why}" for name, why in call.unread.items()]
        raise InputError("; ".join([str(error), *told])) from None
    return replace(found, unread=call.unread)


def configuration(
    words: Sequence[Field],
    environment: Mapping[str, str],
    given: Given,
    file: str,
    *,
    in_file: int | None,
    notes: tuple[Note, ...],
    without: tuple[str, ...] = (),
    called: int | None = None,
) -> Configuration:
    """The words of a call, on the line `called`, as a configuration, judged by all rules but `without`."""
    arguments = parse(with_model(words, given.model, file), environment)
    check_known(arguments, file)
    world = given.num_gpus or in_file
    if world is None:
        raise GpusUnknown(file)
    run = Run(arguments, world)
    refuse_other_models(run, file)
    without = without if given.one_connection else (*without, "one_connection")
    judged = tuple(rule for rule in RULES if rule not in without)
    broken = tuple(on_the_call(one, called) for one in broken_rules(run) if one.rule in judged)
    refuse_unseen(broken, arguments, file)
    model, missing = _model(run, broken, given, file)
    found = [*_not_understood(arguments, notes), *_gpus(given, in_file), *missing]
    found += [*remarks(run), *not_in_the_specifications(run), *not_modelled(run), *_repeated(arguments)]
    return Configuration(
        framework="megatron",
        file=file,
        num_gpus=world,
        judged=judged,
        broken=broken,
        remarks=tuple(found),
        model=model,
        training=training_of(run, file) if _readable(broken) else None,
        plan=plan_of(run, file) if _readable(broken) else None,
        places=places_of(run),
        options=said_in(arguments),
    )


def refuse_unseen(broken: Sequence[Broken], arguments: Arguments, file: str) -> None:
    """InputError where required options are missing that may stand in words which are not known here."""
    missing = next((one for one in broken if one.rule == "required_options"), None)
    if missing is not None and arguments.unseen:
        word = arguments.unseen[0]
        raise InputError(
            f"{file}:{word.line}: {', '.join(missing.flags)} may stand in what is not known here ({word.unknown}); "
            "--define NAME=VALUE sets a variable of the script"
        )


def on_the_call(broken: Broken, called: int | None) -> Broken:
    """What is missing is missing on the line of the call."""
    return replace(broken, line=called) if broken.rule == "required_options" and broken.line is None else broken


def check_known(arguments: Arguments, file: str) -> None:
    """InputError for the first value that decides everything and that only a shell would know."""
    refused = {flag for broken in arguments.broken for flag in broken.flags}
    for dest in MUST_BE_KNOWN:
        given = arguments.given.get(dest)
        if given is not None and given.unknown and given.flag not in refused:
            raise InputError(
                f"{file}:{given.line}: {given.flag}: its value is not known ({given.unknown}); "
                "--define NAME=VALUE sets a variable of the script"
            )


def _readable(broken: tuple[Broken, ...]) -> bool:
    """Whether the numbers themselves are sound."""
    return not any(one.rule in UNSOUND for one in broken)


def _model(run: Run, broken: tuple[Broken, ...], given: Given, file: str) -> tuple[ModelSpec | None, list[Remark]]:
    """The model, or the remark that says what is missing for it."""
    if not _readable(broken):
        return None, []
    if given.model is not None and not any(run.arguments.line(dest) for dest in SIZES):
        return given.model, []
    in_file = run.whole("vocab_size") or run.whole("padded_vocab_size")
    if given.vocab_size and in_file not in (None, given.vocab_size):
        raise InputError(f"--vocab has no effect: {file} gives a vocabulary of {in_file}")
    vocab = in_file or given.vocab_size
    if vocab is None:
        tokenizer = run.text("tokenizer_type") or DEFAULT_TOKENIZER
        text = f"the vocabulary is that of the tokenizer ({tokenizer}): give --vocab for memory and time"
        return None, [Remark("missing", text, ("--vocab-size",), run.arguments.line("tokenizer_type"))]
    try:
        return model_of(run, name=Path(file).stem, vocab_size=vocab, where=file), []
    except InputError:
        if broken:
            return None, []  # the broken rules say it in Megatron's words
        raise


def _not_understood(arguments: Arguments, notes: tuple[Note, ...]) -> list[Remark]:
    unseen = [Note(word.line, f"{word.unknown}; options in it are not seen") for word in arguments.unseen]
    return [Remark(note.kind, note.text, (), note.line) for note in (*notes, *unseen)]


def _gpus(given: Given, in_file: int | None) -> list[Remark]:
    if given.num_gpus is None or in_file in (None, given.num_gpus):
        return []
    return [Remark("assumed", f"the file starts {in_file} processes; --gpus {given.num_gpus} is taken instead")]


def _repeated(arguments: Arguments) -> list[Remark]:
    return [
        Remark("no_effect", f"{flag} is given before with another value; the last one holds", (flag,), line)
        for flag, line in arguments.repeated
    ]
