"""`ppadvisor bubble`: the numbers of "Splitting a model across stages", and every way to ask wrongly."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli

# The article: p = 8 with m = 8, 32, 64 gives 7/15, 7/39, 7/71, and "under 5 percent you need m of about 133".
# (p - 1)/(m + p - 1) at m = 133 is 7/140, exactly 1/20; at m = 134 it is 7/141.
ARTICLE = {8: (7, 15), 32: (7, 39), 64: (7, 71), 133: (7, 140), 134: (7, 141)}


def test_the_articles_table_in_json(cli: Cli) -> None:
    """Bubble, utilisation and overhead at p = 8 are the article's fractions, as the nearest doubles."""
    result = cli("bubble", "--pp", "8", "--microbatches", "8,32,64,133,134", "--format", "json")
    assert result.exit_code == 0
    assert result.document["format_version"] == "1.1"
    assert result.document["rows"] == [
        {
            "pipeline_parallel": 8,
            "num_microbatches": m,
            "bubble_fraction": idle / whole,
            "utilization_fraction": m / whole,
            "bubble_overhead": 7 / m,
        }
        for m, (idle, whole) in ARTICLE.items()
    ]


def test_the_articles_table_for_people(cli: Cli) -> None:
    """The table shows each bubble as the article writes it and in percent: 7/15 is 46.67 %, 7/140 is 5.00 %."""
    result = cli("bubble", "--pp", "8", "--microbatches", "8,32,64,133,134")
    words = [line.split() for line in result.stdout.splitlines()[3:]]
    assert words == [
        ["8", "8", "7/15", "46.67", "%", "53.33", "%", "87.50", "%"],
        ["8", "32", "7/39", "17.95", "%", "82.05", "%", "21.88", "%"],
        ["8", "64", "7/71", "9.86", "%", "90.14", "%", "10.94", "%"],
        ["8", "133", "7/140", "5.00", "%", "95.00", "%", "5.26", "%"],
        ["8", "134", "7/141", "4.96", "%", "95.04", "%", "5.22", "%"],
    ]


@pytest.mark.parametrize("target", ["0.05", "5%", "1/20", "0.0500"])
def test_five_percent_needs_133_microbatches(cli: Cli, target: str) -> None:
    """At p = 8 the bubble is 5 % at m = 133 exactly, so 133 is the answer, not 134 by a rounded double."""
    document = cli("bubble", "--pp", "8", "--target", target, "--format", "json").document
    assert document["num_microbatches"] == 133
    assert document["rows"][0]["bubble_fraction"] == 0.05


def test_just_below_five_percent_needs_one_more(cli: Cli) -> None:
    """A target below 1/20 by less than a double can tell is still below: m = 134."""
    target = "0.0499999999999999999999"
    document = cli("bubble", "--pp", "8", "--target", target, "--format", "json").document
    assert document["num_microbatches"] == 134


def test_a_target_for_several_depths(cli: Cli) -> None:
    """With several p each has its row: 15 x 19 = 285 at p = 16, and at p = 1, without a bubble, m = 1."""
    document = cli("bubble", "--pp", "1,8,16", "--target", "0.05", "--format", "json").document
    rows = [(row["pipeline_parallel"], row["num_microbatches"]) for row in document["rows"]]
    assert rows == [(1, 1), (8, 133), (16, 285)]
    assert "num_microbatches" not in document


@pytest.mark.parametrize("given", [[], ["--microbatches", "1"]])
def test_naive_uses_one_rank_of_p(cli: Cli, given: list[str]) -> None:
    """The naive schedule keeps 1/p of the ranks busy (the article: 8-way at 12.5 percent)."""
    result = cli("bubble", "--pp", "2,8", "--schedule", "naive", *given, "--format", "json")
    assert [row["utilization_fraction"] for row in result.document["rows"]] == [1 / 2, 1 / 8]
    assert [row["num_microbatches"] for row in result.document["rows"]] == [1, 1]


def test_gpipe_and_1f1b_have_the_same_bubble(cli: Cli) -> None:
    """The two schedules differ in memory, not in the bubble (the article, "1F1B: one forward, one backward")."""
    arguments = ["bubble", "--pp", "4,8", "--microbatches", "8,64", "--format", "csv"]
    assert cli(*arguments, "--schedule", "gpipe").stdout == cli(*arguments, "--schedule", "1f1b").stdout


def test_csv_and_markdown(cli: Cli) -> None:
    """CSV has the keys of JSON and raw numbers, markdown the columns of the table; 7/8 is 0.875."""
    arguments = ["bubble", "--pp", "8", "--microbatches", "1"]
    assert cli(*arguments, "--format", "csv").stdout == (
        "pipeline_parallel,num_microbatches,bubble_fraction,utilization_fraction,bubble_overhead\n8,1,0.875,0.125,7.0\n"
    )
    assert cli(*arguments, "--format", "markdown").stdout.endswith("| 8 | 1 | 7/8 | 87.50 % | 12.50 % | 700.00 % |\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--pp 0 --microbatches 8", "--pp: '0' must be above zero"),
        ("--pp -8 --microbatches 8", "--pp: '-8' must be above zero"),
        ("--pp 8.0 --microbatches 8", "--pp: '8.0' is not a whole number"),
        ("--pp nan --microbatches 8", "--pp: 'nan' is not a quantity"),
        ("--pp 8 --microbatches 0", "--microbatches: '0' must be above zero"),
        ("--pp 8 --microbatches 8,,9", "--microbatches: '8,,9' has an empty item"),
        ("--pp 8 --microbatches 1e3", "--microbatches: '1e3' is not a whole number"),
        ("--pp 8 --microbatches 99999999999999999999", "is far too large"),
        ("--pp 8", "either --microbatches"),
        ("--pp 8 --microbatches 8 --target 0.05", "either --microbatches"),
        ("--pp 8 --target 0", "--target: '0' must be above zero"),
        ("--pp 8 --target 1", "above 0 and below 1"),
        ("--pp 8 --target 5", "--target: '5' is above 1"),
        ("--pp 8 --target five", "--target: 'five' is not a quantity"),
        ("--pp 8 --schedule naive --microbatches 8", "m is 1, and only 1"),
        ("--pp 8 --schedule naive --target 0.9", "m is 1, and only 1"),
        ("--pp 8 --schedule 1fb --target 0.05", "did you mean '1f1b'?"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: str, message: str) -> None:
    """Each wrong or contradicting option is named in one line on stderr; exit 2, nothing on stdout."""
    result = cli("bubble", *arguments.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("schedule", "options", "bubble"),
    [
        ("interleaved-1f1b", "--vp 2 --microbatches 32", 7 / 71),  # (p-1)/(v m + p-1), Megatron paper, section 2.2.2
        ("zb-v", "--microbatches 32", 7 / 199),  # (p-1)/(6 m + p-1), torch's op lists replayed
        ("dualpipe", "--microbatches 20", 6 / 66),  # DeepSeek's picture: 66 slots, 60 of them work
        ("pipedream", "--microbatches 8", 0.0),  # no flush
    ],
)
def test_other_schedules_by_their_closed_form(cli: Cli, schedule: str, options: str, bubble: float) -> None:
    """Every schedule has its bubble told, at p = 8, as its authors print it."""
    row = cli("bubble", "--pp", "8", "--schedule", schedule, *options.split(), "--format", "json").document["rows"][0]
    assert row["bubble_fraction"] == pytest.approx(bubble, abs=1e-12)
    assert row["bubble_overhead"] == pytest.approx(bubble / (1 - bubble), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--schedule zb-v --target 5%", "--target: the fewest micro-batches are known for 1f1b, gpipe only"),
        ("--schedule zb-v", "--microbatches is missing for schedule zb-v"),
        ("--schedule zb-v --microbatches 8 --vp 3", "virtual_stages must be 2: got 3"),
        ("--schedule dualpipe --microbatches 4", "at least 2 x pipeline_parallel, 16: got 4"),
        ("--schedule 1f1b --microbatches 4 --vp 2", "--vp: got 2, but schedule 1f1b has 1 virtual stage"),
    ],
)
def test_what_other_schedules_cannot_do_is_one_line(cli: Cli, options: str, says: str) -> None:
    """Sizes that a schedule cannot run, and questions it has no form for, are bad input."""
    result = cli("bubble", "--pp", "8", *options.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
