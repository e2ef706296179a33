"""The pages of the four studies follow from their rows, and say what readers rely on."""

from collections import Counter

import pytest

from reproductions import april, golden_partition_zone, practical_feasibility, privacy_tokens
from reproductions.april import claims as april_claims
from reproductions.april import make_tables, study
from reproductions.common import page
from reproductions.golden_partition_zone import claims as golden_claims
from reproductions.golden_partition_zone import make_tables as golden_tables
from reproductions.golden_partition_zone import results_rows
from reproductions.practical_feasibility import claims as feasibility_claims
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility import tables as feasibility_tables
from reproductions.privacy_tokens import claims as token_claims
from reproductions.privacy_tokens import tables as token_tables

REACHED, TESTED = "not reached in our budget", "not tested here"
PAGES = {
    april: (make_tables, lambda: april_claims.claims(study.RESULTS)),
    golden_partition_zone: (golden_tables, lambda: golden_claims.claims(results_rows.all_rows())),
    practical_feasibility: (feasibility_tables, lambda: feasibility_claims.claims(setting.RESULTS)),
    privacy_tokens: (token_tables, lambda: token_claims.claims(token_tables.RESULTS)),
}
VERDICTS = {
    april: {"reproduces": 19, "undecided": 11, TESTED: 1, REACHED: 3},
    golden_partition_zone: {"reproduces": 27, REACHED: 2, TESTED: 4, "undecided": 10},
    practical_feasibility: {"contradicts": 1, "reproduces": 4, REACHED: 6, TESTED: 3, "undecided": 10},
    privacy_tokens: {"contradicts": 1, "undecided": 10, TESTED: 5, "reproduces": 5},
}


@pytest.mark.parametrize("paper", PAGES, ids=lambda paper: paper.__name__.split(".")[1])
def test_page_and_verdicts(paper):
    """A change of a count is a change of what we say about the paper."""
    tables, claims = PAGES[paper]
    assert page.write(tables.PAGE, tables.sections(), ["--check"]) == 0
    assert Counter(claim.word for claim in claims()) == VERDICTS[paper]
