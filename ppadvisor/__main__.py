"""`python -m ppadvisor` is the command `ppadvisor`."""

import sys

from ppadvisor.cli.process import process

sys.exit(process())
