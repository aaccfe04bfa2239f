"""Small DICOM series, made to order, full of what must never be written anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

SECRETS = {
    "PatientName": "Quasimodo^Esmeralda",
    "PatientBirthDate": "19320229",
    "AccessionNumber": "ACC7654321X",
    "PatientID": "HOSP-998877",
    "OtherPatientIDs": "OTHER-554433",
    "PatientAddress": "Rue-de-la-Huchette-17",
    "PatientTelephoneNumbers": "0142343434",
    "ReferringPhysicianName": "Frollo^Claude",
    "OperatorsName": "Phoebus^Captain",
    "PerformingPhysicianName": "Gringoire^Pierre",
    "InstitutionName": "HotelDieuParis",
    "InstitutionAddress": "ParvisNotreDame",
    "StationName": "MRSTATION77",
    "DeviceSerialNumber": "SERIAL123987",
    "StudyDescription": "Study of Quasimodo",
    "StudyID": "STUDYID5566",
    "ImageComments": "Call Esmeralda 0142",
    "PatientComments": "lives with Djali",
    "MedicalRecordLocator": "LOCATOR4455",
    "ProtocolName": "MPRAGE Quasimodo",
    "SeriesDescription": "MPRAGE for Esmeralda",
}
"""By DICOM keyword; the last two also say that the sequence is an MPRAGE."""
SECRET_WORDS = (
    *("Quasimodo", "Esmeralda", "19320229", "1932-02-29", "ACC7654321X", "HOSP-998877", "OTHER-554433", "Huchette"),
    *("0142343434", "Frollo", "Phoebus", "Gringoire", "HotelDieu", "NotreDame", "MRSTATION77", "SERIAL123987"),
    *("STUDYID5566", "Djali", "LOCATOR4455"),
)
SLICES, ROWS, COLUMNS = 18, 12, 10


def volume(slices: int = SLICES, rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    """(slices, rows, columns), int16, no two neighbours alike."""
    return (np.arange(slices * rows * columns) * 37 % 2011).astype(np.int16).reshape(slices, rows, columns)


def write_series(folder: Path, data: np.ndarray | None = None, suffix: str = ".dcm", **header: Any) -> list[Path]:
    """Write one axial series: columns to the left, rows to the back, slices up; voxels of 5 x 4 x 3 mm.

    Parameters
    ----------
    folder : Path
    data : array of (slices, rows, columns)
    suffix : str
        Of the file names, which begin with the series number.
    header : dict
        Fields to change in all slices; ``spacing_mm`` is the distance of slices, ``pixel_mm`` rows and columns.
    """
    data = volume() if data is None else data
    spacing, pixel = float(header.pop("spacing_mm", 3.0)), header.pop("pixel_mm", (4.0, 5.0))
    fields = {**SECRETS, "SeriesNumber": 2, "Modality": "MR", "SeriesInstanceUID": generate_uid(), **header}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, plane in enumerate(data):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = MRImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        path = folder / f"{fields['SeriesNumber']}_{index:04d}{suffix}"
        dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID, dataset.SOPInstanceUID = MRImageStorage, meta.MediaStorageSOPInstanceUID
        dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = "1.2.3", "1.2.4"
        dataset.Manufacturer, dataset.MagneticFieldStrength = "SIEMENS", 3
        dataset.ScanningSequence, dataset.MRAcquisitionType = "GR", "3D"
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "M"]
        dataset.EchoTime, dataset.RepetitionTime, dataset.InversionTime, dataset.FlipAngle = 2.98, 2300, 900, 9
        dataset.AcquisitionDate, dataset.AcquisitionTime, dataset.StudyDate = "20060418", "082030", "20060418"
        dataset.InstanceNumber, dataset.AcquisitionNumber = index + 1, 1
        dataset.ImagePositionPatient = [-20.0, -24.0, 7.0 + spacing * index]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.PixelSpacing, dataset.SliceThickness = list(pixel), spacing
        dataset.Rows, dataset.Columns = plane.shape
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.BitsAllocated = dataset.BitsStored = 16
        dataset.HighBit, dataset.PixelRepresentation = 15, 1
        for name, value in fields.items():
            setattr(dataset, name, value)
        dataset.PixelData = np.ascontiguousarray(plane, "<i2").tobytes()
        dataset.save_as(path, enforce_file_format=True)
        paths.append(path)
    return paths
