"""A report without single people, which may be passed on."""

import pytest
from run_factory import RunPlan, make_run

from heatlas.pipeline.run.tables import read_table, write_text
from heatlas.reports.page.build import write_report


def pages(run):
    return {
        path.relative_to(run.root).as_posix(): path.read_text(encoding="utf-8")
        for pattern in ("*.html", "pages/*.html", "report.json", "methods*")
        for path in run.root.glob(pattern)
    }


@pytest.mark.ci
def test_a_report_of_groups_names_nobody_and_has_no_page_of_a_person(tmp_path):
    run = make_run(tmp_path / "run", RunPlan())
    people = set(read_table(run.root / "scans.tsv", ["participant_id"])["participant_id"])
    write_report(run)
    before = pages(run)
    assert any(name.startswith("sub-") for name in before)
    assert sum(any(person in text for person in people) for text in before.values()) > len(people)

    text = run.config.read_text(encoding="utf-8")
    assert "people = true" in text
    write_text(run.config, text.replace("people = true", "people = false"))
    report = write_report(run)
    after = pages(run)
    assert report.faults == ()
    named = {name: [person for person in people if person in page] for name, page in after.items()}
    assert {name: found for name, found in named.items() if found} == {}
    assert not any(name.startswith("sub-") for name in after)
    assert "shows groups only" in after["report.html"]
    assert "Mean maps" in after["report-maps.html"]
