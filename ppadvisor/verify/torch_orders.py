"""The order in which torch's own schedules work, without processes: its classes are made on stages that do nothing."""

from __future__ import annotations

from typing import Any

from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES
from ppadvisor.verify.torch_engine import UnverifiableError, torch_module

SINGLE = ("gpipe", "1f1b")
"""One stage a rank; torch runs a loop of its own, not the order that it declares, which for 1F1B is off by one."""


class NotedStage:
    """What torch asks of a stage: its place, its compute, which it writes down in torch's words, and no messages."""

    def __init__(self, p: int, v: int, index: int = 0) -> None:
        self.stage_index, self.num_stages = index, p * v
        self.group_rank, self.group_size = index % p, p
        self.is_first, self.is_last = index == 0, index == p * v - 1
        self.submod = None
        self.done: list[str] = []

    def forward_one_chunk(self, microbatch: int, *_inputs: object, **_options: object) -> None:
        self.done.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch: int, **_options: object) -> None:
        self.done.append(f"{self.stage_index}B{microbatch}")

    def no_messages(self, _microbatch: int) -> list[object]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def perform_reduce_grad(self, _divisor: int) -> None:
        pass


def schedule_on(stages: list[Any], schedule_id: str, num_microbatches: int, **options: Any) -> Any:
    """Torch's own schedule of this id on these stages of a rank; ValueError for what it refuses."""
    made = torch_module("torch.distributed.pipelining.schedules").get_schedule_class(TORCH_NAMES[schedule_id])
    return made(stages[0] if schedule_id in SINGLE else stages, num_microbatches, **options)


def noted_schedule(schedule_id: str, p: int, m: int, v: int, rank: int = 0) -> Any:
    """Torch's schedule as this rank makes it, on stages that do nothing; ValueError for what it refuses."""
    return schedule_on([NotedStage(p, v, rank) for _ in range(v)], schedule_id, m)


def compute_words(operations: list[Any]) -> list[str]:
    """The compute operations as torch prints them, messages, sharding and idle slots left out."""
    return [str(operation) for operation in operations if operation is not None and operation.is_compute_op]


def executed_words(schedule_id: str, p: int, m: int, v: int) -> list[list[str]]:
    """What each rank executes: GPipe's and 1F1B's loops are run, of the others it is the list with messages.

    ValueError for what torch refuses.
    """
    if schedule_id not in SINGLE:
        with_messages = noted_schedule(schedule_id, p, m, v).pipeline_order_with_comms
        return [compute_words(with_messages[rank]) for rank in range(p)]
    ranks = []
    for rank in range(p):
        schedule = noted_schedule(schedule_id, p, m, v, rank)
        schedule._initialize_stage = lambda *_shapes: None
        schedule._step_microbatches()
        ranks.append(schedule._stage.done)
    return ranks


def torch_words(schedule_id: str, p: int, m: int, v: int) -> list[list[str]]:
    """`executed_words`; UnverifiableError for a schedule that torch does not have, or numbers that it refuses."""
    if schedule_id not in TORCH_NAMES:
        names = ", ".join(TORCH_NAMES)
        raise UnverifiableError(
            f"torch has no schedule {schedule_id} to compare with, only {names}; it runs this one through its "
            "list-driven runtime: use --run"
        )
    try:
        return executed_words(schedule_id, p, m, v)
    except ValueError as error:
        raise UnverifiableError(f"torch's {TORCH_NAMES[schedule_id]} refuses p {p}, m {m}, v {v}: {error}") from None
