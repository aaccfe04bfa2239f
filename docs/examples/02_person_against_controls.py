"""
Evidence of one person against controls
=======================================

Evidence says how much a region adds to the log odds of AD, compared with controls that the network was trained
with. One number means little alone: here it stands beside the same number of every control, none of whom their
network had seen.
"""

import matplotlib.pyplot as plt

import heatlas

run = heatlas.open("../../demo/run")
rows = run.relevance.query("hemisphere == 'both' and map == @run.maps[0]")
people = rows.pivot_table(index=["label", "participant_id"], columns="name", values="evidence")  # mean of their scans
controls, patients = people.loc["CN"], people.loc["AD"]

# %%
# The patient with the most evidence in all, and the regions where that person is farthest above the controls.
patient = patients.sum(axis=1).idxmax()
own = patients.loc[patient]
farthest = ((own - controls.mean()) / controls.std()).sort_values(ascending=False).index[:8]

fig, ax = plt.subplots(figsize=(6.5, 3.5))
for place, region in enumerate(farthest):
    ax.plot(controls[region], [place] * len(controls), "o", color="grey", alpha=0.5)
    ax.plot(own[region], place, "D", color="firebrick")
ax.axvline(0, color="lightgrey", lw=0.8)
ax.set(
    yticks=range(8), yticklabels=farthest, xlabel="evidence (logits)", title=f"{patient} and {len(controls)} controls"
)
ax.invert_yaxis()
fig.tight_layout()
