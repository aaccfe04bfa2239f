"""The picture on the first screen of ``heatlas apply`` without labels: one scan under the networks of another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.figures.gallery import Picture, png, shown_in
from heatlas.reports.figures.portraits import MAPS, REGIONS, first_map
from heatlas.reports.figures.slices import SMOOTHED_MM
from heatlas.reports.frame.material import Material
from heatlas.reports.people.scan_pictures import name_of, viewers_of
from heatlas.reports.questions.findings import in_words
from heatlas.reports.questions.question import ANY_TASK, Question
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


def draw_first_scan(material: Material) -> Mapping[str, Any]:
    """The leading map of the scan that the table of predictions begins with, on the person's own brain."""
    people = ParticipantRecords(material.run)
    answer = "predicted" if material.run.task.is_number else "probability"
    visits = people.visits.sort_values(answer, ascending=False, kind="stable")
    for row in visits.to_dict("records") if material.shows_people and material.run.keeps_single_maps else ():
        files, name = material.run.files_of(row), name_of(row)
        content = material.picture(files.portrait)
        if content is None:
            continue
        sheet, file = first_map(content), "first_scan.png"
        material.gallery.write(png(sheet), file)
        title = map_title((shown_in(content, MAPS) or material.run.main_maps)[0])
        words = material.run.task.words
        caption = WORDS.say("caption", name=name, title=title, words=words, SMOOTHED_MM=SMOOTHED_MM)
        outlined = shown_in(content, REGIONS)
        caption += f" {WORDS.say('lines', regions=in_words(outlined))}" if outlined else ""
        picture = Picture(
            file, material.address(material.gallery.folder / file), f"{title} on six slices of {name}.", caption,
            sheet.width, dark=True, height=sheet.height,
        )  # fmt: skip
        return {"picture": picture, "name": name, "page": material.links.participant(row["participant_id"]),
                "viewers": viewers_of(material, pd.DataFrame([row])), "more": len(visits) - 1}  # fmt: skip
    return {"picture": None}


FIRST_SCAN = Question.read(
    WORDS,
    "scan",
    draw=draw_first_scan,
    tasks=ANY_TASK,
    applies=lambda run: run.without_labels and run.applied is not None,
)
