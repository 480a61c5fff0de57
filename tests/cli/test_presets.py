"""`ppadvisor presets`: everything known by name is listed whole, with its source."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import ppadvisor
from tests.cli.conftest import Cli

KINDS = ("models", "gpus", "clusters")


def files(kind: str) -> list[str]:
    """The ids of the TOML files of a kind."""
    return sorted(path.stem for path in (Path(ppadvisor.__file__).parent / "presets" / kind).glob("*.toml"))


@pytest.mark.parametrize(("kind", "fewest"), [("models", 30), ("gpus", 24), ("clusters", 8)])
def test_json_holds_every_file(cli: Cli, kind: str, fewest: int) -> None:
    """Every preset file is a row with its id and a source, and there are as many as were promised."""
    document = cli("presets", kind, "--format", "json").document
    assert document["kind"] == kind
    assert [row["id"] for row in document["rows"]] == files(kind)
    assert len(document["rows"]) >= fewest
    assert all(row["source"] for row in document["rows"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_whole_at_80_columns(cli: Cli, kind: str) -> None:
    """No line is longer than 80 characters, and each id stands whole in each part of the table."""
    lines = cli("presets", kind).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first_words = [line.split(" ")[0] for line in lines]
    for preset in files(kind):
        assert first_words.count(preset) == first_words.count("id")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["csv", "markdown"])
def test_other_formats_have_a_line_each(cli: Cli, kind: str, format: str) -> None:
    """CSV and markdown have one line for each preset under their header."""
    result = cli("presets", kind, "--format", format)
    for preset in files(kind):
        assert sum(line.startswith((f"{preset},", f"| {preset} |")) for line in result.stdout.splitlines()) == 1


def test_a_name_shows_every_field(cli: Cli) -> None:
    """With a name each field is shown; 84,932,978,278 bytes are 79.1 GiB, in csv the number as it stands."""
    result = cli("presets", "gpus", "h100-sxm-80gb")
    for field in ("memory_source", "peak_flops_per_s.fp8", "inter_node_source", "gpus_per_node"):
        assert f"\n{field} " in result.stdout
    assert "79.1 GiB (84,932,978,278 bytes)" in result.stdout
    assert "450 GB/s" in result.stdout
    raw = dict(csv.reader(io.StringIO(cli("presets", "gpus", "h100-sxm-80gb", "--format", "csv").stdout)))
    assert raw["memory_bytes"] == "84932978278"


def test_a_name_in_json_is_a_list_of_one(cli: Cli) -> None:
    """A reader of JSON finds one preset in the same place as many."""
    one = cli("presets", "gpus", "h100-sxm-80gb", "--format", "json").document["rows"]
    many = cli("presets", "gpus", "--format", "json").document["rows"]
    assert one == [row for row in many if row["id"] == "h100-sxm-80gb"]


def test_the_beginning_of_a_name_is_enough(cli: Cli) -> None:
    """An unambiguous beginning, in any case, means the preset."""
    assert cli("presets", "gpus", "H200").stdout == cli("presets", "gpus", "h200-sxm-141gb").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gpu", "unknown kind of preset 'gpu'; did you mean 'gpus'?"),
        ("gpus h100", "ambiguous: h100-"),
        ("gpus h1000-sxm", "did you mean 'h100-sxm-80gb'?"),
        ("", "missing argument '{models|gpus|clusters|stacks|schedules}'"),
        ("gpus h100-sxm-80gb more", "unexpected extra argument (more)"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: str, message: str) -> None:
    """Each unknown or ambiguous name is answered by one line with the nearest, exit 2."""
    result = cli("presets", *arguments.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
