"""Whose configuration a file is: by its name and what stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppadvisor import frameworks
from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Given
from ppadvisor.frameworks.megatron.config import configuration
from ppadvisor.frameworks.megatron.options import options
from ppadvisor.frameworks.megatron.places import SAYS
from ppadvisor.frameworks.shell import Field
from ppadvisor.specs.model import MlaSpec, ModelSpec, MoeSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

PUBLISHED = Path(__file__).parent.parent / "published" / "megatron_scripts"
FLAGS = "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --bf16\n"
KEYS = "num_layers: 2\nhidden_size: 8\nbf16: true\n"


@pytest.mark.parametrize("path", sorted(PUBLISHED.iterdir()), ids=lambda path: path.name)
def test_published_scripts(path: Path) -> None:
    """Each published configuration of Megatron-LM is recognised, also without its name, as a pipe gives it."""
    text = path.read_text()
    assert frameworks.recognised(path, text) == "megatron"
    assert frameworks.recognised(Path("-"), text) == "megatron"


@pytest.mark.parametrize(
    ("name", "text", "framework"),
    [
        ("train.sh", "", "megatron"),
        ("run", "#!/bin/bash\n", "megatron"),
        ("run", FLAGS, "megatron"),
        ("run", KEYS, "megatron"),
        ("run.yaml", KEYS.replace("num_layers", "--num-layers"), "megatron"),
        ("run", FLAGS.replace("--bf16", "--data-path x"), "megatron"),
        ("run", "num_layers: 2\nhidden_size: 8\n", None),
        ("run", "", None),
        ("run.txt", "a shopping list", None),
        ("train.py", FLAGS.replace(" --", "\nadd_argument --"), None),
        ("-", '{\n "num_layers": 2,\n "hidden_size": 8,\n "bf16": true\n}', None),
    ],
)
def test_names_and_texts(name: str, text: str, framework: str | None) -> None:
    """A script by its name or first line, what has no telling name by three options; the rest is nobody's."""
    if framework is not None:
        assert frameworks.recognised(Path(name), text) == framework
        return
    with pytest.raises(InputError) as caught:
        frameworks.recognised(Path(name), text)
    message = str(caught.value)
    assert message.startswith(f"{name}: no configuration that is known here; needs ")
    for known, reader in frameworks.READERS.items():
        assert f"{reader.form} (--framework {known})" in message


def test_a_reader_by_name() -> None:
    """Every reader offers the two functions; a name without one is answered with the nearest."""
    for name in frameworks.READERS:
        reader = frameworks.reader(name)
        assert callable(reader.recognises)
        assert callable(reader.read)
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        frameworks.reader("megatrom")


def test_what_options_say() -> None:
    """The table of options and fields names real ones on both sides."""
    fields = {name for spec in (PlanSpec, TrainingSpec, ModelSpec, MoeSpec, MlaSpec) for name in spec.names()}
    assert {*SAYS} <= {*options()}
    assert {*SAYS.values()} <= fields


BASE = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 512"
)
BASES = (
    f"{BASE} --pipeline-model-parallel-size 2",
    f"{BASE} --num-experts 4 --moe-router-topk 2 --multi-latent-attention --tensor-model-parallel-size 2 "
    "--sequence-parallel --fp8-format hybrid --recompute-granularity selective --group-query-attention",
)
VALUES = {"int": ("2", "4"), "float": ("0.5",)}


def specified(words: str) -> tuple[object, ...] | None:
    """Model, training run and plan of these options, None where they make none."""
    fields = tuple(Field(word, 1) for word in words.split())
    try:
        read = configuration(fields, {}, Given(num_gpus=8), "run.sh", in_file=None, notes=())
    except InputError:
        return None
    known = (read.model, read.training, read.plan)
    return known if all(known) else None


@pytest.mark.parametrize("base", BASES, ids=["dense", "experts"])
def test_no_option_changes_a_field_unsaid(base: str) -> None:
    """Each of Megatron's 839 options is given on top of a run: one that changes a specification is in the table."""
    plain = specified(base)
    assert plain is not None
    for dest, option in options().items():
        values = option.choices or VALUES.get(option.type, ("2",)) if option.takes_value else ("",)
        changed = {value for value in values if specified(f"{base} {option.flag} {value}") not in (None, plain)}
        assert not changed or dest in SAYS, (dest, changed)


def test_options_as_the_file_has_them(tmp_path: Path) -> None:
    """Every option with its value and line, whichever of its flags is typed; switches by the flag that is given."""
    path = tmp_path / "run.sh"
    path.write_text(
        f"{FLAGS.strip()} --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 \\\n"
        " --micro-batch-size 1 --disable-bias-linear --lr $LR --untie-embeddings-and-output-weights\n"
    )
    read = frameworks.reader("megatron").read(path, Given(num_gpus=1, vocab_size=8))
    said = {name: (one.value, one.line, one.says) for name, one in read.options.items()}
    assert said["--num-layers"] == ("2", 1, "num_layers")
    assert said["--micro-batch-size"] == ("1", 2, "micro_batch_size")
    assert said["--disable-bias-linear"] == ("given", 2, "mlp_bias")
    assert said["--lr"][0].startswith("not known: ")
    assert said["--lr"][1:] == (2, None)
