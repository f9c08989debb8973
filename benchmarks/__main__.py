"""`python -m benchmarks`: what `make bench` runs."""

from __future__ import annotations

import sys

from benchmarks.rows.run import main

sys.exit(main())
