"""Which variables a stack's services ignored, by their logs."""

from __future__ import annotations

import json

from inferflux.cli.stack.ignored import ignored_variables
from inferflux.common.process.lifecycle import IGNORES_VARIABLE

MISSPELT, MEANT = "INFERFLUX_WORKER_PREFIX_CASHE", "INFERFLUX_WORKER_PREFIX_CACHE"


def test_both_formats_of_the_log_tell_a_misspelt_variable_and_the_one_that_was_meant() -> None:
    plain = (
        f"03:38:29.929706 [warning  ] {IGNORES_VARIABLE} nearest={MEANT} service=worker variable={MISSPELT}"
    )
    as_json = json.dumps({"event": IGNORES_VARIABLE, "variable": MISSPELT, "nearest": MEANT})
    assert ignored_variables([plain]) == {MISSPELT: MEANT}
    assert ignored_variables(["ready", as_json, plain]) == {MISSPELT: MEANT}


def test_other_lines_say_nothing() -> None:
    assert ignored_variables([f"ready variable={MISSPELT} nearest={MEANT}", IGNORES_VARIABLE]) == {}
