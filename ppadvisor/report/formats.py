"""The output formats: name -> module, so that a run imports only the one it prints."""

from __future__ import annotations

FORMATS: dict[str, str] = {
    "table": "ppadvisor.report.table",
    "json": "ppadvisor.report.json_",
    "csv": "ppadvisor.report.csv_",
    "markdown": "ppadvisor.report.markdown",
}
