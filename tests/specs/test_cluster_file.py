"""A cluster as a file: it comes back as it was written, and what is wrong with one is said with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppadvisor.errors import InputError
from ppadvisor.search.api import make_problem
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.calibrated import CalibratedAssumption
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.cluster_file import cluster_toml
from ppadvisor.specs.load import load_cluster, preset_names
from ppadvisor.specs.training import TrainingSpec
from tests.problems import cluster, model

MEASURED = CalibratedAssumption(value=0.58, low=0.55, high=0.61, source='calibrated to "run.log"\n\x7f é \U0001f600')


def written(tmp_path: Path, of: ClusterSpec) -> str:
    """The file's name."""
    path = tmp_path / "cluster.toml"
    path.write_text(cluster_toml(of), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", preset_names("clusters"))
def test_every_preset_comes_back(tmp_path: Path, name: str) -> None:
    """A preset written as a file and read again is the same cluster; its GPU stands there by its id."""
    of = load_cluster(name)
    file = written(tmp_path, of)
    assert load_cluster(file) == of
    assert "peak_flops" not in Path(file).read_text(encoding="utf-8")


def test_an_own_gpu_and_what_was_calibrated_come_back(tmp_path: Path) -> None:
    """A GPU that is no preset is written whole; texts keep quotes, line ends and signs of other scripts."""
    of = cluster(16).changed(calibrated={"gemm_efficiency": MEASURED})
    assert load_cluster(written(tmp_path, of)) == of


def test_the_number_of_gpus_may_be_another(tmp_path: Path) -> None:
    """The calibrated file serves any number of GPUs, of which few make one node."""
    file = written(tmp_path, cluster(16))
    assert load_cluster(file, 64).num_gpus == 64
    assert load_cluster(file, 4).gpus_per_node == 4


def test_the_user_wins_over_what_was_calibrated() -> None:
    """A calibrated assumption takes the place of the default and says so; one that the user gave stays."""
    of = cluster(8).changed(calibrated={"gemm_efficiency": MEASURED})
    run = TrainingSpec(sequence_length=1024, global_batch_size=8)
    plain = make_problem(model(), of, run).assumptions
    assert (plain.gemm_efficiency.value, plain.gemm_efficiency.low, plain.gemm_efficiency.high) == (0.58, 0.55, 0.61)
    assert (plain.gemm_efficiency.provenance, plain.gemm_efficiency.source) == ("calibrated", MEASURED.source)
    assert plain.hbm_efficiency == Assumptions().hbm_efficiency
    given = make_problem(model(), of, run, Assumptions().changed({"gemm_efficiency": 0.7})).assumptions
    assert (given.gemm_efficiency.value, given.gemm_efficiency.provenance) == (0.7, "given by the user")


GOOD = """name = "own"
source = "data sheet"
gpu = "h100-sxm-80gb"
num_gpus = 8
gpus_per_node = 8
intra_node_bandwidth_bytes_per_s = 450e9
inter_node_bandwidth_bytes_per_s = 50e9
[calibrated.gemm_efficiency]
value = 0.6
low = 0.5
high = 0.7
source = "a run"
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("h100-sxm-80gb", "h100-smx-80gb", "did you mean 'h100-sxm-80gb'"),
        ("num_gpus = 8", "num_gpu = 8", "did you mean 'num_gpus'"),
        ("gemm_efficiency", "gem_efficiency", "did you mean 'gemm_efficiency'"),
        ("low = 0.5", "low = 0.65", "value 0.6 is not within low 0.65 and high 0.7"),
        ("high = 0.7", "high = 1.7", "gemm_efficiency: got 1.7"),
        ("value = 0.6", "value = nan", "gemm_efficiency"),
        ('source = "a run"', "", r"source is missing"),
        ("[calibrated.gemm_efficiency]", "[calibrated", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, old: str, new: str, says: str) -> None:
    """Each mistake is one line that begins with the file."""
    path = tmp_path / "own.toml"
    path.write_text(GOOD)
    assert load_cluster(str(path)).calibrated["gemm_efficiency"].value == 0.6
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=says) as caught:
        load_cluster(str(path))
    assert str(caught.value).startswith(str(path))
