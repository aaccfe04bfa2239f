"""
Apply a run to one scan
=======================

A new scan is registered as the run did, predicted and explained by the networks of all folds, and compared with the
controls of the run. For brevity the scan here lies in the template already, and is that of a person of the demo
whose voxels were changed a little: people of the run itself would be left out.
"""

import tempfile
from pathlib import Path

import nibabel as nib

import heatlas

run = heatlas.open("../../demo/run")
patient = run.predictions.query("label == 'AD'")["participant_id"].iloc[0]
known = nib.load(next(Path("../../demo/run").glob(f"{patient}/**/anat/*_desc-preproc_T1w.nii.gz")))
scan = Path(tempfile.mkdtemp()) / "new.nii.gz"
nib.save(nib.Nifti1Image(known.get_fdata(dtype="float32") * 1.01, known.affine), scan)

# %%
# The answers of the networks, and what each region adds, of the largest:
if __name__ == "__main__":  # worker processes read this file too
    applied = heatlas.apply("../../demo/run", scan, scan.with_name("applied"), start_at="template")
    print(applied.table("predictions_applied").iloc[0].to_string())
    evidence = applied.table("relevance_applied_bilateral").query("map == @applied.maps[0]")
    print(evidence.sort_values("evidence", ascending=False)[["group", "evidence", "density"]].head(8).to_string())
