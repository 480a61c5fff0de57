"""Records: how they are read, what is wrong with one, and which of them calibrate."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import check_record
from ppadvisor.evidence.records import label_of, parse_records, read_records, shipped_records
from tests.evidence.samples import lines, sample

ALONE = {"pipeline_parallel": 1, "data_parallel": 4}
MODULES = {"recompute": "selective"}
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "moe_ffn_hidden_size": 1024}


def test_the_shipped_records_are_read() -> None:
    """All 1,601 records that ship are whole, and each says where its numbers stand."""
    records = shipped_records()
    assert len({record.id for record in records}) == 1601
    assert all(record.source.title and record.source.where for record in records)


def test_no_configuration_both_calibrates_and_tests() -> None:
    """All records of a group have one label."""
    labels = defaultdict(set)
    for record in shipped_records():
        labels[record.group].add(record.label)
    assert all(len(of_group) == 1 for of_group in labels.values())


def test_the_labels_follow_from_the_groups_alone() -> None:
    """The label in the data is the stated rule: first byte of the key's SHA-256 modulo 4, so about a quarter."""
    records = shipped_records()
    for record in records:
        byte = hashlib.sha256(record.group.encode()).digest()[0]
        assert record.label == ("calibrates" if byte % 4 == 0 else "tests") == label_of(record.group)
    calibrating = {record.group for record in records if record.label == "calibrates"}
    assert 0.2 < len(calibrating) / len({record.group for record in records}) < 0.3


def test_a_record_without_a_label_has_that_of_its_configuration() -> None:
    """The shipped records without their labels have the same ones again."""
    shipped = shipped_records()
    bare = "\n".join(record.model_dump_json(exclude={"label"}, exclude_none=True) for record in shipped)
    assert [record.label for record in parse_records(bare, "bare")] == [record.label for record in shipped]


def test_vocabulary_schedules_are_named_as_in_the_paper() -> None:
    """The artifact's `vocab` is Vocab-2 and its `synctwice` Vocab-1 (arXiv 2411.05288, figure 10: one barrier, two)."""
    for record in shipped_records():
        table = record.source.table or ""
        if record.source.key == "vocabpp_csv" and ("_vocab_" in table or "_synctwice_" in table):
            name = "1f1b-vocab-2" if "_vocab_" in table else "1f1b-vocab-1"
            assert record.plan.schedule == name
            assert f"/{name}/" in record.group
            assert "corrected" in (record.notes or "")


def test_a_users_file_is_read(tmp_path: Path) -> None:
    """Empty lines are passed over; a label may be given."""
    path = tmp_path / "runs.jsonl"
    path.write_text(lines(sample(), sample(id="own-2", label="calibrates")) + "\n")
    assert [record.label for record in read_records([path])] == ["tests", "calibrates"]
    with pytest.raises(InputError, match="'own-1' stands in an earlier file too"):
        read_records([path, path])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (sample(lable="tests"), "runs, line 1: unknown key 'lable'; did you mean 'label'?"),
        (sample(plan={"pipeline_paralel": 2}), "unknown key 'plan.pipeline_paralel'; did you mean 'pipeline_parallel'"),
        (sample(model={"num_layers": "24"}), "model.num_layers: got '24'; input should be a valid integer"),
        (sample(model={"num_layers": 0}), "model.num_layers: got 0; input should be greater than 0"),
        (sample(label="both"), "label: got 'both'"),
        (sample(plan={"data_parallel": 2}), "cluster.num_gpus: got 4, but p t c d = 8"),
        (sample(plan={"num_microbatches": 4}), "training.global_batch_size: got 8, but m b d = 4"),
        (sample(plan={"layers_per_stage": [12, 12]}), "plan.layers_per_stage: got 2 numbers with sum 24; needs p = 4"),
        (sample(plan={"layers_per_stage": [12, 12, 0, 0]}), "plan.layers_per_stage.2: got 0; only the first and the"),
        (sample(plan={"schedule": "none"}), "plan.schedule: got 'none' with p = 4; needs p = 1"),
        (sample(plan={"expert_parallel": 3}), "plan.expert_parallel: got 3; a model without experts needs 1"),
        (sample(model={"moe": EXPERTS}, plan={"expert_parallel": 3}), "expert_parallel: got 3; does not divide 8 ex"),
        (sample(measured={"peak_by_stage_gib": [9.0, 8.0]}), "measured.peak_by_stage_gib: got 2 numbers; needs one a"),
        (sample(model={"vocab_size": 10**19}), "model.vocab_size: got 10000000000000000000; input should be less"),
        (sample(training={"sequence_length": 10**19}), "training.sequence_length: got 10000000000000000000; input"),
        (sample(model={"hidden_size": 10**30}), "model.hidden_size: got 1000000000000000000000000000000; input"),
        (sample(cluster={"gpu": "a1000"}), "cluster.gpu: unknown gpu 'a1000'; did you mean 'a100-sxm-80gb'?"),
        (sample(training={"optimizer": "adamm"}), "training.optimizer: unknown optimizer 'adamm'; did you mean 'adam'"),
        (sample(plan={"schedule": "1f1bb"}), "plan.schedule: unknown schedule '1f1bb'; did you mean '1f1b'?"),
        (sample(plan={**ALONE, "schedule": "gpip"}), "plan.schedule: unknown schedule 'gpip'; did you mean 'gpipe'?"),
        (
            sample(plan={"schedule": "zb-v", "virtual_stages": 3}),
            "plan.virtual_stages: got 3 with schedule zb-v",
        ),
        (sample(plan={**MODULES, "recompute_modules": ["atention"]}), "recompute_modules: got ['atention']"),
    ],
)
def test_a_wrong_record_is_one_line(changed: dict[str, Any], message: str) -> None:
    """Each mistake names file, line, field and what is allowed."""
    with pytest.raises(InputError) as caught:
        parse_records(lines(changed), "runs", check_record)
    assert message in str(caught.value)
    assert str(caught.value).startswith("runs, line 1: ")


def test_what_is_right_passes() -> None:
    """Every shipped record, those that are not modelled included, and stages with the embedding or head alone."""
    for one in shipped_records():
        check_record(one)
    ends = sample(plan={"layers_per_stage": [0, 12, 12, 0]})
    assert parse_records(lines(ends), "runs", check_record)[0].plan.layers_per_stage == (0, 12, 12, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(sample(), sample()), "runs, line 2: id: 'own-1' stands in the file twice"),
        (lines(sample()) + "{", "runs, line 2: Invalid JSON"),
        ("[1, 2]", r"runs, line 1: got \[1, 2\]; input should be an object"),
        ("3", "runs, line 1: got 3; input should be an object"),
        ("\n", "runs: holds no record"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, message: str) -> None:
    """A repeat, a broken line and an empty file are told as such."""
    with pytest.raises(InputError, match=message):
        parse_records(text, "runs")
