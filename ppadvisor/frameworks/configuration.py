"""What a reader of a trainer's configuration hands on: specifications, and what the trainer would say to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from ppadvisor.errors import InputError
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec


@dataclass(frozen=True)
class Given:
    """What the user says beside the file."""

    num_gpus: int | None = None
    vocab_size: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the script's environment."""
    one_connection: bool = True
    """Whether the GPUs need CUDA_DEVICE_MAX_CONNECTIONS=1, as all up to Hopper do."""
    model: ModelSpec | None = None
    """Where the file leaves it to something that is not read, as what follows."""
    pipeline_parallel: int | None = None
    tensor_parallel: int | None = None
    expert_parallel: int | None = None
    recompute: str | None = None
    sequence_length: int | None = None
    partition_method: str | None = None
    """DeepSpeed's: which layers count when they are divided over the stages."""
    attention: str | None = None
    loss: str | None = None
    dropout: bool | None = None
    fused_norm: bool | None = None
    sequence_parallel: bool | None = None


class GpusUnknown(InputError):
    """A configuration does not say on how many GPUs it runs, and nobody else did."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} does not say how many GPUs there are: give --gpus")


class Outcome(Enum):
    """What becomes of a broken rule."""

    REJECTED = "rejected"
    """The trainer's own checks at start-up refuse it, or the model cannot be built."""
    FAILS = "fails"
    """It starts, and fails at the first step."""
    WRONG = "wrong"
    """It runs, and trains something else than was asked for."""


@dataclass(frozen=True)
class Broken:
    """A rule that the configuration breaks."""

    rule: str
    outcome: Outcome
    message: str
    flags: tuple[str, ...]
    """Options to change, the likeliest first."""
    line: int | None
    """Where the value stands in the file."""
    source: str
    """The place in the trainer's own code."""


@dataclass(frozen=True)
class Remark:
    """Something to know that breaks no rule."""

    kind: str
    """`not_modelled`, `not_understood`, `no_effect`, `slow`, `assumed`."""
    message: str
    flags: tuple[str, ...] = ()
    line: int | None = None


@dataclass(frozen=True)
class Said:
    """The value of an option as the file says it."""

    value: str
    line: int | None
    says: str | None = None
    """The field of plan, training run or model that it decides; None where it decides none of them."""


@dataclass(frozen=True)
class Configuration:
    """A trainer's configuration in our words."""

    framework: str
    file: str
    num_gpus: int | None
    """As the file says."""
    judged: tuple[str, ...]
    """Every rule that was looked at, the broken ones too."""
    broken: tuple[Broken, ...]
    remarks: tuple[Remark, ...]
    model: ModelSpec | None
    """None where a number that only the user can know is missing (a remark then says which)."""
    training: TrainingSpec | None
    plan: PlanSpec | None
    """None where the options make no plan."""
    places: dict[str, tuple[str, int | None]]
    """Field of the plan, training run or model -> (option to change, line where its value stands)."""
    options: Mapping[str, Said] = field(default_factory=dict)
    """All that the file says, modelled or not, by the trainer's own names."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Option of the trainer -> what this form of its configuration calls it, where that is another name."""
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Field of the plan -> its only values, where the trainer bars others for this model whatever the options."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user defined without effect -> why."""
    settings: Callable[[ModelSpec, PlanSpec], dict[str, str]] | None = None
    """Options that build a plan's stages in files of this form; None: the framework's own."""

    @property
    def accepted(self) -> bool:
        """What the trainer's own start-up answers."""
        return all(broken.outcome is not Outcome.REJECTED for broken in self.broken)

    @property
    def legal(self) -> bool:
        """Accepted, and it will run and train the model that was asked for."""
        return not self.broken


@dataclass(frozen=True)
class Launch:
    """What a writer of a trainer's configuration hands on."""

    text: str
    read: Configuration
    """The text as it is read again."""
    unsaid: tuple[str, ...]
    """Values that the trainer has no option for, each with what it takes instead."""
    beside: tuple[str, ...] = ()
    """What the user has to say elsewhere than in the text, a line each."""


OF_A_SCRIPT = ("num_gpus", "vocab_size", "variables")
"""What may be said beside the options of Megatron-LM."""


class Reader(Protocol):
    """What a module of `READERS` offers."""

    TAKES: tuple[str, ...]
    """Fields of `Given` that have an effect on it."""

    def recognises(self, path: Path, text: str) -> bool:
        """Whether a file is one of this trainer's, by its name and text; never an error. A pipe's name says nothing."""

    def read(self, path: Path, given: Given) -> Configuration:
        """Read a file. InputError for what cannot be read, or not be known."""
