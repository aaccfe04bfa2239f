"""``heatlas check`` on ten thousand scans: time and peak memory, on trees of tiny files with tables of full size.

    python benchmarks/check_speed.py --output docs/benchmarks/check.md

Three inputs are generated in a temporary folder: a LONI tree of NIfTI files, one of DICOM files (a hundredth of the
scans: each is 100 files), and a BIDS dataset as Clinica writes it. Measured is the command in a process of its own, the
start of Python included; the limit is that of issue 4, 60 s and 1 GB.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
from harness import arguments_of, show_page, table
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid
from timed import command_cost

LIMIT_SECONDS, LIMIT_BYTES = 60.0, 1e9
VISITS = {"bl": 0, "m06": 6, "m12": 12, "m24": 24, "m36": 36}
DIAGNOSES = ("CN", "MCI", "Dementia")
SLICES = 100
HEATLAS = "import sys; from heatlas.workflows.command_line import main; sys.exit(main())"
"""As the installed command."""


def main() -> None:
    options = arguments_of(__doc__, "--output", scans=10_000)
    rows = []
    trees: dict[str, tuple[Callable[[Path, int], None], int]] = {
        "LONI, NIfTI": (write_loni, options.scans),
        "LONI, DICOM": (write_dicom, options.scans // 100),
        "BIDS of Clinica": (write_bids, options.scans),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (write, scans) in trees.items():
            root = Path(folder) / name.replace(" ", "_").replace(",", "")
            write(root, scans)
            found, kept, seconds, busy, memory = measured(root, Path(folder) / "out" / root.name)
            good = "yes" if seconds <= LIMIT_SECONDS and memory <= LIMIT_BYTES else "no"
            rows.append([name, found, kept, f"{seconds:.1f}", f"{busy:.1f}", f"{memory / 1e6:.0f} MB", good])
            print(rows[-1], flush=True)
    columns = ["input", "scans found", "kept", "seconds (clock)", "seconds (processor)", "peak memory"]
    text = "\n".join(table([*columns, "within 60 s and 1 GB"], rows))
    show_page(text, options.output, "Speed of `heatlas check`")


def measured(root: Path, out: Path) -> tuple[int, int, float, float, int]:
    """Scans found and kept, seconds of the clock and of the processor, and peak memory in bytes of a check."""
    command = [sys.executable, "-c", HEATLAS, "check", str(root), "--out", str(out)]
    seconds, usage = command_cost(command)
    found = json.loads((out / "check.json").read_text())["scans"]
    return found["found"], found["kept"], seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def visits(scans: int) -> pd.DataFrame:
    """A row per scan; people have five visits each."""
    place = np.arange(scans)
    person, months = place // len(VISITS), np.array(list(VISITS.values()))[place % len(VISITS)]
    since_first = pd.to_timedelta(np.round(months * 30.44), unit="D")
    first = pd.Timestamp(2006, 1, 1) + pd.to_timedelta(person, unit="D")
    return pd.DataFrame(
        {
            "person": person,
            "ptid": [f"{one % 60:03d}_S_{one:04d}" for one in person],
            "code": np.array(list(VISITS))[place % len(VISITS)],
            "months": months,
            "number": place + 1,
            "first": first,
            "day": first + since_first,
            "diagnosis": np.array(DIAGNOSES)[person % 3],
        }
    )


def write_loni(root: Path, scans: int) -> None:
    """A LONI download: half the scans original, half processed; compressed or not, as LONI does both."""
    image = nifti()
    packed = gzip.compress(image, 1)
    for scan in visits(scans).itertuples():
        processed = scan.number % 2 == 0
        sequence = "MPR__GradWarp__B1_Correction__N3__Scaled" if processed else "MPRAGE"
        folder = root / "ADNI" / scan.ptid / sequence / f"{scan.day:%Y-%m-%d}_08_20_30.0" / f"I{scan.number}"
        folder.mkdir(parents=True)
        name = f"ADNI_{scan.ptid}_MR_{sequence}_Br_{scan.day:%Y%m%d}0820_S1_I{scan.number}.nii"
        (folder / (name + ".gz" if processed else name)).write_bytes(packed if processed else image)
    write_tables(root, visits(scans))


def write_dicom(root: Path, scans: int) -> None:
    for scan in visits(scans).itertuples():
        folder = root / "ADNI" / scan.ptid / "MPRAGE" / f"{scan.day:%Y-%m-%d}_08_20_30.0" / f"I{scan.number}"
        folder.mkdir(parents=True)
        series = generate_uid(entropy_srcs=[str(scan.number)])
        for index in range(SLICES):
            write_slice(folder / f"slice_{index:03d}.dcm", series, index)
    write_tables(root, visits(scans))


def write_slice(path: Path, series: str, index: int) -> None:
    data = Dataset()
    data.SOPClassUID = "1.2.840.10008.5.1.4.1.1.4"
    data.SOPInstanceUID = generate_uid(entropy_srcs=[series, str(index)])
    data.SeriesInstanceUID, data.SeriesNumber, data.InstanceNumber = series, 2, index + 1
    data.Modality, data.SeriesDescription, data.MRAcquisitionType = "MR", "MPRAGE", "3D"
    data.ImageType = ["ORIGINAL", "PRIMARY", "M"]
    data.Rows = data.Columns = 16
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
    data.PixelSpacing, data.SliceThickness = [1.0, 1.0], 1.2
    data.ImageOrientationPatient = [0, 1, 0, 0, 0, -1]
    data.ImagePositionPatient = [1.2 * index, 0, 0]
    data.MagneticFieldStrength = 1.5
    data.PixelData = np.full((16, 16), index, np.uint16).tobytes()
    data.file_meta = FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.save_as(path, enforce_file_format=True)


def write_tables(root: Path, scanned: pd.DataFrame) -> None:
    """Tables of everybody, scanned or not."""
    every = pd.concat([scanned, visits(16_000)[len(scanned) :]])
    ids = {"RID": every["person"], "PTID": every["ptid"], "VISCODE": every["code"]}
    constant = {"COLPROT": "ADNI1", "DX_bl": "CN", "AGE": 70, "PTGENDER": "Female", "MMSE": 28, "Hippocampus": 7000}
    constant |= {"ICV": 1_500_000, "FLDSTRENG": "1.5 Tesla MRI", **{f"FILLER{i}": "12.5" for i in range(98)}}
    known = {"SITE": every["person"] % 60, "APOE4": every["person"] % 3, "DX": every["diagnosis"]}
    known |= {"EXAMDATE": every["day"], "EXAMDATE_bl": every["first"]}
    known |= {"Years_bl": every["months"] / 12, "Month": every["months"]}
    visit = {"VISCODE2": every["code"], "EXAMDATE": every["day"]}
    images = {"SubjectID": scanned["ptid"], "Visit": scanned["code"], "ScanDate": scanned["day"]}
    number = scanned["number"].astype(str)
    listed = {"Image Data ID": "I" + number, "Subject": scanned["ptid"], "Visit": scanned["code"]}
    listed["Acq Date"] = scanned["day"].dt.strftime("%m/%d/%Y")
    rated = {"RID": scanned["person"], "VISCODE": scanned["code"], "LONIUID": "S" + number, "PASS": 1}
    of_all = {"Group": "CN", "Sex": "F", "Age": 70, "Modality": "MRI", "Description": "MPRAGE", "Type": "Original"}
    tables = {
        "ADNIMERGE_18Feb2025": ids | known | constant,
        "DXSUM_18Feb2025": ids | visit | {"DIAGNOSIS": every["person"] % 3 + 1},
        "MPRAGEMETA_18Feb2025": images | {"ImageUID": scanned["number"], "MagStrength": 1.5, "Sequence": "MPRAGE"},
        "MRIQUALITY_18Feb2025": rated,
        "ADNI_T1_2_18_2025": listed | of_all,
    }
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(root / f"{name}.csv", index=False, quoting=csv.QUOTE_ALL)


def write_bids(root: Path, scans: int) -> None:
    image = gzip.compress(nifti(), 1)
    people: dict[str, list[Any]] = {}
    for scan in visits(scans).itertuples():
        people.setdefault("sub-ADNI" + scan.ptid.replace("_", ""), []).append(scan)
    root.mkdir(parents=True)
    (root / "dataset_description.json").write_text('{"Name": "ADNI", "BIDSVersion": "1.7.0"}', encoding="utf-8")
    rows = [f"{person}\t{of[0].ptid}\tF\t{70 + of[0].person % 20}\t1" for person, of in people.items()]
    (root / "participants.tsv").write_text(
        "participant_id\talternative_id_1\tsex\tage_bl\tapoe4\n" + "\n".join(rows) + "\n", encoding="utf-8"
    )
    for person, of in people.items():
        lines = ["session_id\tdiagnosis\tMMS\tcdr_global"]
        for scan in of:
            session = f"ses-M{scan.months:03d}"
            anat = root / person / session / "anat"
            anat.mkdir(parents=True)
            (anat / f"{person}_{session}_T1w.nii.gz").write_bytes(image)
            (anat / f"{person}_{session}_T1w.json").write_text('{"MagneticFieldStrength": 1.494}', encoding="utf-8")
            lines.append(f"{session}\t{scan.diagnosis.replace('Dementia', 'AD')}\t28\t0")
            (root / person / session / f"{person}_{session}_scans.tsv").write_text(
                f"filename\tscan_id\tmri_field\nanat/{person}_{session}_T1w.nii.gz\t{scan.number}\t1.5\n",
                encoding="utf-8",
            )
        (root / person / f"{person}_sessions.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def nifti() -> bytes:
    return nib.Nifti1Image(np.ones((7, 9, 11), np.int16), np.diag([-1.0, 1.2, 1, 1])).to_bytes()


if __name__ == "__main__":
    main()
