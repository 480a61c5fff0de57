"""What every HTML page must be: valid by the standard's parser, alone, and no wider than a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import html5lib

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
"""A browser to measure with; None where the machine has none."""
PHONE = 380
"""Pixels of a narrow telephone."""

MEASURED = """<!doctype html><html lang="en"><head><title>measure</title></head><body>
<iframe id="page" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe><p id="told"></p><script>
onload = () => {{
  const page = document.getElementById('page').contentDocument;
  const tables = [...page.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length;
  document.getElementById('told').textContent = page.documentElement.scrollWidth + ' ' + tables;
}};
</script></body></html>"""


def check_valid(page: str) -> None:
    """The parser of the HTML standard finds nothing to complain about (html5lib's strict mode raises)."""
    html5lib.HTMLParser(strict=True).parse(page)


def check_alone(page: str) -> None:
    """Nothing is loaded from elsewhere: no address, no import, no reference but to a place in the page itself."""
    assert not re.search(r"(?:src|href)\s*=|@import|url\((?!#)|https?://", page)


def widths(page: str, folder: Path, width: int = PHONE) -> tuple[int, int]:
    """(how wide the page is when shown at this width, tables that scroll inside their own box), as Chromium says."""
    file = folder / "measure.html"
    file.write_text(MEASURED.format(width=width, page=escape(page)), encoding="utf-8")
    # a narrow window is not to be had without a screen, so that the page stands in a frame of that width
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={folder / 'profile'}")
    shown = subprocess.run(
        [str(CHROMIUM), *options, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    told = re.search(r'<p id="told">(\d+) (\d+)</p>', shown.stdout)
    assert told, shown.stderr
    return int(told[1]), int(told[2])
