"""`python -m ppadvisor` is the command `ppadvisor`."""

import sys

from ppadvisor.cli.main import process

sys.exit(process())
