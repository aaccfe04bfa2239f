"""
A region against the volume of the hippocampus
==============================================

Does what the network used follow the atrophy? One page for one map: relevance of the hippocampus against its
volume, and the correlations with their intervals, over true-positive scans.
"""

import matplotlib.pyplot as plt

import heatlas

run = heatlas.open("../../demo/run")
points = run.table("volume_points").query("map == @run.maps[0]")
tests = run.table("volume_association").query("map == @run.maps[0]")

fig, ax = plt.subplots(figsize=(4.5, 3.2))
ax.plot(points["hippocampus_mm3"] / 1000, points["relevance_sum"], "o", color="firebrick", alpha=0.6)
ax.set(xlabel="volume of both hippocampi (ml)", ylabel="sum of the map over them (logits)")
ax.set_title(f"{len(points)} scans of {points['participant_id'].nunique()} people")
fig.tight_layout()

# %%
# Repeated scans of a person are not independent: read the rows whose unit is the participant.
tests[["volume", "unit", "estimator", "n_participants", "r", "ci_low", "ci_high", "p"]].round(3)
