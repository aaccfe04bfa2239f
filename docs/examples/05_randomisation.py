"""
Does the map depend on what was learned?
========================================

If the weights are drawn anew, the map must change. Its correlation with the map of the trained network should fall to
about 0, whatever its sign; a map that stays shows the image rather than the network. ``heatlas evaluate`` does this,
and more, on all people.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import heatlas

run = heatlas.open("../../demo/run")
patient = run.predictions.query("label == 'AD'")["participant_id"].iloc[0]
network, image = run.network(patient), run.image(patient)
methods = ("lrp", "input-x-gradient", "guided-backpropagation")


def values(model, method):
    return heatlas.explain(model, image, method, target=1).map.get_fdata().ravel()


trained, drawn = {method: values(network, method) for method in methods}, run.network(patient)
layers = [layer for layer in drawn.modules() if hasattr(layer, "reset_parameters")][::-1]  # the last one first
correlations = {method: [1.0] for method in methods}
torch.manual_seed(0)
for layer in layers:
    layer.reset_parameters()
    for method, known in correlations.items():
        known.append(abs(float(np.corrcoef(trained[method], values(drawn, method))[0, 1])))

fig, ax = plt.subplots(figsize=(5, 3))
for method, known in correlations.items():
    ax.plot(known, "o-", label=method)
ax.set(xlabel="layers drawn anew, from the last", ylabel="size of the correlation", ylim=(0, 1.05))
ax.legend(frameon=False)
fig.tight_layout()
