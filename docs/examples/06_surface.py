"""
A map on the cortical surface
=============================

Maps are nibabel images in template space, so every tool of nilearn takes them. The surface comes with nilearn.
"""

import matplotlib.pyplot as plt
import numpy as np
from nilearn.image import smooth_img
from nilearn.plotting import plot_img_on_surf

import heatlas

run = heatlas.open("../../demo/run")
mean = run.map(group="AD")
smooth = smooth_img(mean, 8)
threshold, largest = np.quantile(np.abs(smooth.get_fdata()), [0.9, 0.999])
plot_img_on_surf(
    smooth, views=["lateral", "medial"], hemispheres=["left", "right"], cmap="RdBu_r",
    threshold=threshold, vmax=largest,
    title="Mean evidence in patients",
)  # fmt: skip
plt.show()

# %%
# Deep structures, such as the hippocampus, are not on the surface. They are in sections:
run.plot(group="AD", cut_coords=(26, -16, -18))
plt.show()
