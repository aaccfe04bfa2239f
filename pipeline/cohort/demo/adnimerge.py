"""The clinical table of the demo cohort, with the columns and spellings of ADNI's ``ADNIMERGE``."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.cohort.demo.people import SyntheticPerson, SyntheticVisit, clinical_scores
from heatlas.pipeline.run.work.seeds import generator

FILE_NAME = "ADNIMERGE_11Nov2025.csv"
VOLUME_NOISE = 0.05
"""Relative standard deviation of measured regional volumes."""

SOURCE = "SYNTHETIC demo cohort: planted volume with 5 % noise (no FreeSurfer)"

_DIAGNOSIS = {"CN": "CN", "MCI": "MCI", "AD": "Dementia"}
_BASELINE_DIAGNOSIS = {"CN": "CN", "MCI": "LMCI", "AD": "AD"}


def adnimerge_row(
    seed: int, person: SyntheticPerson, visit: SyntheticVisit, volumes: dict[str, float] | None
) -> dict[str, object]:
    """One row; `volumes` are the true ones in mm3 by bilateral group and ``"intracranial"``, None without a scan."""
    rng = generator(seed, "demo", "table", person.rid, visit.code)
    noise = 1 + VOLUME_NOISE * rng.standard_normal(3)
    scores = clinical_scores(rng, person.course.mean_severity(person.age, visit.years))
    measured: dict[str, int | None] = dict.fromkeys(("Ventricles", "Hippocampus", "Entorhinal", "ICV"))
    # Real tables lack volumes of some people, so one person has none.
    if volumes is not None and person.rid != 9006:
        measured["Ventricles"] = round(volumes["Lateral ventricle"] * noise[0])
        measured["Hippocampus"] = round(volumes["Hippocampus"] * noise[1])
        measured["Entorhinal"] = round(volumes["Entorhinal area"] * noise[2])
        measured["ICV"] = round(volumes["intracranial"])
    return {
        "RID": person.rid,
        "COLPROT": "ADNI1",
        "ORIGPROT": "ADNI1",
        "PTID": person.ptid,
        "SITE": person.site,
        "VISCODE": visit.code,
        "EXAMDATE": visit.date.isoformat(),
        "DX_bl": _BASELINE_DIAGNOSIS[person.diagnosis],
        "AGE": person.age,
        "PTGENDER": {"F": "Female", "M": "Male"}[person.sex],
        "PTEDUCAT": person.education,
        "PTETHCAT": "Unknown",
        "PTRACCAT": "Unknown",
        "PTMARRY": "Unknown",
        "APOE4": person.apoe4,
        "CDRSB": scores["CDRSB"],
        "ADAS13": scores["ADAS13"],
        "MMSE": round(scores["MMSE"]),
        "FLDSTRENG": {1.5: "1.5 Tesla MRI", 3.0: "3 Tesla MRI"}[person.field_strength],
        "FSVERSION": SOURCE,
        "IMAGEUID": visit.image_number if visit.has_image and visit.month == 0 else None,
        "Ventricles": measured["Ventricles"],
        "Hippocampus": measured["Hippocampus"],
        "WholeBrain": None,
        "Entorhinal": measured["Entorhinal"],
        "Fusiform": None,
        "MidTemp": None,
        "ICV": measured["ICV"],
        "DX": _DIAGNOSIS[visit.diagnosis],
        "EXAMDATE_bl": person.visits[0].date.isoformat(),
        "Years_bl": round((visit.date - person.visits[0].date).days / 365.25, 5),
        "Month_bl": round((visit.date - person.visits[0].date).days / 30.5, 5),
        "Month": visit.month,
        "M": visit.month,
        "update_stamp": "2025-11-11 00:00:00.0",
    }


def adnimerge_csv(rows: list[dict[str, object]]) -> str:
    """The table as ADNI exports it: comma-separated, every field quoted, missing values empty."""
    frame = pd.DataFrame(rows)
    whole = ["APOE4", "IMAGEUID", "Ventricles", "Hippocampus", "Entorhinal", "ICV"]
    frame[whole] = frame[whole].astype("Int64")
    text: str = frame.to_csv(index=False, quoting=1, lineterminator="\n")
    return text
